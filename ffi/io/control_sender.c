#include "io/control_sender.h"

int um_control_sender_need(um_control_sender *sender, um_links *links, const um_socket_config *config)
{
    if (sender->link.fd >= 0)
        return 0;
    int result = um_socket_open_unicast(&sender->link, config, 0);
    um_tap_link_init(&sender->tapped, &sender->link.base, &links->tap, sender->link.local);
    return result;
}

bool um_control_sender_has_moved(const um_control_sender *sender, const um_socket_config *config)
{
    return !um_ip_equal(sender->link.local.ip, config->interface_ip);
}

int um_control_sender_follow(um_control_sender *sender, um_links *links, const um_socket_config *config)
{
    if (sender->link.fd < 0 || !um_control_sender_has_moved(sender, config))
        return 0;
    if (sender->link.is_ipv6 && !um_ip_is_set(config->interface_ip))
        return -EADDRNOTAVAIL;
    um_links_close_socket(links, &sender->link);
    int result = um_control_sender_need(sender, links, config);
    return result == 0 ? 1 : result;
}
