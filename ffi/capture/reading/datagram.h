/* From a UDP datagram to its row (datagram.c). */
#ifndef UM_CAPTURE_READING_DATAGRAM_H
#define UM_CAPTURE_READING_DATAGRAM_H

#include "capture/reading/rows_private.h"

/* What is in a datagram: the row's fields, and its messages and numbers behind those of the rows before. `row` is zero
 * before. */
void um_packet_row_decode_datagram(um_packet_rows *rows, const um_packet_rows_ports *ports,
                                   const um_captured_frame *frame, um_packet_row *row);

/* What a row says of a fault in its messages, and of a message: of datagrams and streams alike. */
enum um_packet_row_status um_packet_status_of_lbmc(enum um_dgram_status status);
enum um_packet_row_kind um_packet_kind_of(const um_lbmc_message *message);

#endif
