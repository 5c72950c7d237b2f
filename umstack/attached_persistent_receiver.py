"""A receiver with a session id whose topic a driver receives (docs/driver.md).

The driver names the Stores of each source. The receiver registers there itself, and maps the log of the source once the
Stores agree where it begins.
"""

from __future__ import annotations

import logging
from typing import Any

from umstack._core import ffi
from umstack._engine.core_address import UNKNOWN_IP
from umstack._engine.endpoint import Endpoint
from umstack._engine.host_identity import host_id
from umstack._engine.receiver_sessions import receiver_session_config
from umstack._engine.subscription import LateMapping, Subscription
from umstack._engine.transport_address import LbtipcAddress
from umstack.attached import AttachedReceiver
from umstack.driver import SharedLog
from umstack.driver.protocol import session_of
from umstack.errors import UmError
from umstack.foreign_text import displayed
from umstack.persistence.registrations import StoredSource
from umstack.persistent_receiver import PersistentReceiver

_log = logging.getLogger("umstack.driver")


class AttachedPersistentReceiver(PersistentReceiver, AttachedReceiver):
    """A receiver with a session id whose topic a driver receives. Made by Context.receiver()."""

    def _map_registered(self, name: str, log: SharedLog, stores: tuple[Endpoint, ...]) -> bool:
        address = LbtipcAddress(host_id(), log.session_id, log.transport_id)
        network, index = session_of({"name": name})
        config = receiver_session_config(address, self.options, self._engine.core, log_key=log.key)
        source = StoredSource(
            self.topic,
            index,
            network,
            address,
            UNKNOWN_IP,
            ffi.new("um_session_id *", config.id),
            stores,
            log.topic_index,
        )
        registration = self._registrations.of_log(self._subscription, source)
        if registration is None:
            return False
        self._recovery.expect()

        def join_late(subscription: Subscription, session: Any, mapping: LateMapping) -> None:
            self._recovery.join(subscription, session, log.topic_index, mapping, registration)

        try:
            self._note_log(address, name)
            self._engine.map_shared_log(
                [self._subscription],
                address,
                log.topic_index,
                log.key,
                name,
                stores[0],
                join_late,
                registration.wanted_sqn,
            )
            registration.wanted_sqn = None
        except UmError as error:
            _log.warning("%s is not received: %s", displayed(name), displayed(str(error)))
        return True
