// SPDX-License-Identifier: Apache-2.0
/*
 * The VLAN tags between Ethernet and its payload, shared by the programs of this directory.
 */
#ifndef PACKET_H
#define PACKET_H

#include <linux/if_ether.h>
#include <linux/types.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Maximum number of tags (802.1Q or 802.1ad) that a program skips. */
#define VLAN_TAGS_MAX 2

struct vlan_tag {
    __be16 tci;
    __be16 encapsulated_proto;
};

static __always_inline int is_vlan(__be16 proto)
{
    return proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD);
}

#endif
