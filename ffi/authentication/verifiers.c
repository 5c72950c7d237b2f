#include "authentication/verifiers.h"

#include "core/wire/lbtrm.h"
#include "os/memory.h"

/* ---- common to both verifiers ---- */

static void close_accepted(um_accepted *accepted)
{
    for (uint32_t i = 0; i < accepted->count; i++)
        um_mac_close(&accepted->macs[i]);
    accepted->count = 0;
}

/* Replaces all keys at once, or none on failure. */
static int accept_keys(um_accepted *accepted, const um_key_set *keys, enum um_mac_purpose purpose,
                       const um_mac_session *session)
{
    um_accepted opened = {.count = 0};
    for (uint32_t i = 0; i < keys->count && i < UM_KEYS_PER_SET; i++) {
        int result = um_mac_open(&opened.macs[i], purpose, &keys->keys[i], session);
        if (result != 0) {
            close_accepted(&opened);
            return result;
        }
        opened.count++;
    }
    close_accepted(accepted);
    *accepted = opened;
    return 0;
}

static enum um_tag_status check_tag(um_accepted *accepted, um_address from, const uint8_t *data, uint32_t length,
                                    int64_t tolerance_ns, int64_t wall_ns, um_trailer *trailer)
{
    if (!um_trailer_read(data, length, trailer))
        return UM_TAG_MISSING;
    um_mac *mac = NULL;
    for (uint32_t i = 0; i < accepted->count && mac == NULL; i++)
        mac = accepted->macs[i].key_id == trailer->key_id ? &accepted->macs[i] : NULL;
    if (mac == NULL)
        return UM_TAG_KEY_UNKNOWN;
    if (trailer->is_encrypted != um_mac_encrypts(mac))
        return mac->hmac != NULL ? UM_TAG_WRONG : UM_TAG_ENCRYPTION; /* a control message is never encrypted */
    if (!um_mac_is_correct(mac, from, data, length, trailer))
        return UM_TAG_WRONG;
    return um_stamp_is_fresh(trailer->stamp, wall_ns, tolerance_ns) ? UM_TAG_OK : UM_TAG_STALE;
}

/* ---- a source's datagrams ---- */

static enum um_tag_status verify_session(um_verifier *base, um_address from, const uint8_t *data, uint32_t *length,
                                         int64_t wall_ns)
{
    um_session_verifier *verifier = (um_session_verifier *)base;
    um_trailer trailer;
    if (verifier->scope == UM_AUTHENTICATE_CONTROL && *length > 0 && (data[0] & 0x0f) == UM_LBTRM_DATA)
        return UM_TAG_OK;
    enum um_tag_status status =
        check_tag(&verifier->accepted, from, data, *length, verifier->tolerance_ns, wall_ns, &trailer);
    if (status != UM_TAG_OK)
        return status;
    if (!um_replay_window_take(verifier->window, UM_SESSION_WINDOW_LOG2, trailer.stamp))
        return UM_TAG_REPLAYED;
    *length -= UM_TRAILER_BYTES;
    return UM_TAG_OK;
}

int um_session_verifier_set_keys(um_session_verifier *verifier, const um_key_set *keys)
{
    return accept_keys(&verifier->accepted, keys, UM_MAC_SESSION, &verifier->session);
}

int um_session_verifier_open(um_session_verifier *verifier, const um_key_set *keys, enum um_authentication_scope scope,
                             int64_t tolerance_ns, const um_mac_session *session)
{
    memset(verifier, 0, sizeof *verifier);
    verifier->base.verify = verify_session;
    verifier->scope = scope;
    verifier->tolerance_ns = tolerance_ns;
    verifier->session = *session;
    return um_session_verifier_set_keys(verifier, keys);
}

void um_session_verifier_close(um_session_verifier *verifier)
{
    close_accepted(&verifier->accepted);
}

/* ---- datagrams of several senders ---- */

/* The table is open-addressed: a sender's entry is within PROBES_MAX places of its address's home. */
enum { PROBES_MAX = 16 };

static uint32_t home_of(um_address address)
{
    uint64_t key = um_address_key(address) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(key >> 32) & (UM_SENDERS_MAX - 1);
}

/* Returns the entry of a sender whose tag was right. A new sender takes a free entry, or replaces the longest idle one
 * in its probe range. Returns NULL if its stamp is not newer than those of all replaced senders. */
static um_known_sender *sender_of(um_senders_verifier *verifier, um_address address, uint64_t stamp, int64_t wall_ns)
{
    um_known_sender *oldest = NULL;
    for (uint32_t i = 0; i < PROBES_MAX; i++) {
        um_known_sender *sender = &verifier->senders[(home_of(address) + i) & (UM_SENDERS_MAX - 1)];
        if (sender->window.newest != 0 && um_address_equal(sender->address, address))
            return sender;
        if (oldest == NULL || sender->window.newest < oldest->window.newest)
            oldest = sender;
    }
    if (um_stamp_ahead_ns(verifier->forgotten_stamp, wall_ns) > verifier->tolerance_ns)
        verifier->forgotten_stamp = um_stamp_follow(0, wall_ns); /* our own clock was set back since */
    if (stamp <= verifier->forgotten_stamp)
        return NULL;
    if (oldest->window.newest > verifier->forgotten_stamp)
        verifier->forgotten_stamp = oldest->window.newest;
    verifier->sender_count += oldest->window.newest == 0;
    *oldest = (um_known_sender){.address = address, .window.floor = verifier->forgotten_stamp};
    return oldest;
}

static enum um_tag_status verify_senders(um_verifier *base, um_address from, const uint8_t *data, uint32_t *length,
                                         int64_t wall_ns)
{
    um_senders_verifier *verifier = (um_senders_verifier *)base;
    um_trailer trailer;
    enum um_tag_status status =
        check_tag(&verifier->accepted, from, data, *length, verifier->tolerance_ns, wall_ns, &trailer);
    if (status != UM_TAG_OK)
        return status;
    um_known_sender *sender = sender_of(verifier, from, trailer.stamp, wall_ns);
    if (sender == NULL || !um_sender_window_take(&sender->window, trailer.stamp))
        return UM_TAG_REPLAYED;
    *length -= UM_TRAILER_BYTES;
    return UM_TAG_OK;
}

int um_senders_verifier_set_keys(um_senders_verifier *verifier, const um_key_set *keys)
{
    return accept_keys(&verifier->accepted, keys, verifier->purpose, NULL);
}

int um_senders_verifier_open(um_senders_verifier *verifier, const um_key_set *keys, enum um_mac_purpose purpose,
                             int64_t tolerance_ns)
{
    memset(verifier, 0, sizeof *verifier);
    verifier->base.verify = verify_senders;
    verifier->purpose = purpose;
    verifier->tolerance_ns = tolerance_ns;
    verifier->senders = um_map(UM_SENDERS_MAX * sizeof *verifier->senders);
    if (verifier->senders == NULL)
        return -ENOMEM;
    int result = um_senders_verifier_set_keys(verifier, keys);
    if (result != 0)
        um_senders_verifier_close(verifier);
    return result;
}

void um_senders_verifier_close(um_senders_verifier *verifier)
{
    close_accepted(&verifier->accepted);
    um_unmap(verifier->senders, UM_SENDERS_MAX * sizeof *verifier->senders);
    verifier->senders = NULL;
}
