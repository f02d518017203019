"""Where the agents of a start meet, and later their ranks: a store in the first host's agent.

Torch's own waits for the other agents hear no signal until they are over, and name nobody. Here the
agents come together first, so that nothing is left for torch to wait for.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from megatron.errors import LaunchError, first_line
from megatron.launch.plan import LaunchPlan
from megatron.runtime.meeting_store import hold_store, pauses, reach_store

# Seconds that the hosts wait for each other.
_PATIENCE_S: Final = 300
_MOST_SHOWN: Final = 8  # hosts in a message


class AgentsMeeting(StaticTCPRendezvous):
    """Torch's rendezvous of agents that know their places; all have come once there is one.

    The store's port stays bound from here on, so that no other program can take it before the ranks come.

    Raises:
        LaunchError: the port is taken, the store cannot be reached, or hosts do not come.
    """

    def __init__(self, plan: LaunchPlan, node: int) -> None:
        place = plan.address, plan.port or 0
        super().__init__(
            *place,
            rank=node,
            world_size=len(plan.hosts),
            run_id=plan.run_id,
            timeout=_PATIENCE_S,
        )
        store: Store
        if node == 0:
            store = held = hold_store(place, _PATIENCE_S)
            self.master_port = held.port
        else:
            store = reach_store(f"host {plan.hosts[node].host}", place, _PATIENCE_S).store
            store.set_timeout(timedelta(seconds=_PATIENCE_S))
        wait_for_agents(store, plan, node, _PATIENCE_S)
        self._store = store


def wait_for_agents(store: Store, plan: LaunchPlan, node: int, patience_s: float) -> None:
    """Return once the agents of all hosts have called this.

    Raises:
        LaunchError: some have not within ``patience_s`` seconds, or the first host's has ended.
    """
    size = len(plan.hosts)
    try:
        store.set(f"agent/{node}", "here")
        store.add("agents", 1)
        for _ in pauses(patience_s):
            if store.add("agents", 0) >= size:
                return
        missing = [
            share.host
            for each, share in enumerate(plan.hosts)
            if not store.check([f"agent/{each}"])
        ]
    except RuntimeError as error:
        raise LaunchError(
            f"host {plan.hosts[node].host}: the start on {plan.hosts[0].host} has ended before all hosts "
            f"had come\n  found: {first_line(error)}\n  to do: see what {plan.hosts[0].host} said"
        ) from error
    shown = ", ".join(missing[:_MOST_SHOWN])
    more = f" and {len(missing) - _MOST_SHOWN} more" if len(missing) > _MOST_SHOWN else ""
    raise LaunchError(
        f"{len(missing)} of {size} hosts have not come within {patience_s:g} s: {shown}{more}\n"
        "  to do: see what they said; ./deepy.py doctor tries the ways between the hosts"
    )
