/* Decodes a UDP datagram into its row. */
#ifndef UM_CAPTURE_READING_DATAGRAM_H
#define UM_CAPTURE_READING_DATAGRAM_H

#include "capture/reading/rows_private.h"

/* Fills in the fields of `row`, which is zero before, and writes its messages and sqns behind those of the earlier
 * rows.
 */
void um_packet_row_decode_datagram(um_packet_rows *rows, const um_packet_rows_ports *ports,
                                   const um_captured_frame *frame, um_packet_row *row);

/* Map an LBMC decoding fault to a row status, and a message to a row kind. Used for datagrams and streams. */
enum um_packet_row_status um_packet_status_of_lbmc(enum um_dgram_status status);
enum um_packet_row_kind um_packet_kind_of(const um_lbmc_message *message);

#endif
