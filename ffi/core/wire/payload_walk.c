#include "core/wire/payload_walk.h"

#include "core/wire/datagram_piece.h"

static bool is_piece(const um_lbmc_message *message)
{
    return message->type == UM_LBMC_CONTROL && message->extended != NULL && message->extended_id == UM_LBMC_OWN_ID &&
           message->extended_subtype == UM_DATAGRAM_PIECE_OPTION_SUBTYPE;
}

bool um_payload_next(const uint8_t *messages, uint32_t bytes, uint32_t *at, uint32_t *offset, uint32_t *length)
{
    while (*at < bytes) {
        um_lbmc_message message = {0};
        uint32_t left = bytes - *at, message_bytes = 0;
        enum um_dgram_status status = um_lbmc_observe(messages + *at, left, left, &message, &message_bytes);
        if (status != UM_DGRAM_OK || message_bytes == 0) {
            *offset = *at;
            *length = left;
            *at = bytes;
            return true;
        }
        *offset = (uint32_t)(message.payload - messages);
        *length = message.payload_length;
        *at += message_bytes;
        if (is_piece(&message)) {
            *offset = *at;
            *length = bytes - *at;
            *at = bytes;
        }
        if (*length > 0)
            return true;
    }
    *offset = bytes;
    *length = 0;
    return false;
}
