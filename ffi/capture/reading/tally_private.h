/* Counting a decoded packet instead of making a row of it (decode.c). */
#ifndef UM_CAPTURE_READING_TALLY_PRIVATE_H
#define UM_CAPTURE_READING_TALLY_PRIVATE_H

#include "capture/reading/rows_private.h"
#include "capture/reading/tally.h"

/* Counts a packet, whose messages are behind those of the rows. Returns false if the packet must become a row. */
bool um_tally_take(um_tally *tally, const um_packet_rows *rows, const um_capture_packet *packet,
                   const um_captured_frame *frame, const um_packet_row *row);

#endif
