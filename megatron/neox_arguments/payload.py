"""What the launcher sends to the ranks, so that all of them run what it has checked.

The checked values and their hash travel in the environment, where other users cannot read them; a
configuration holds no secrets in any case. A rank reads the files itself, for it needs their texts,
and insists that they mean the same here: on another host a file may be another one, and in another
checkout of this project a default.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from megatron.errors import ConfigError
from megatron.neox_arguments.differences import differences

if TYPE_CHECKING:
    from megatron.neox_arguments.arguments import NeoXArgs

VARIABLE = "MEGATRON_CONFIGURATION"
_SHOWN = 5  # differing keys that the message lists


def payload_of(args: NeoXArgs) -> str:
    """The text for :data:`VARIABLE`."""
    content = {"hash": args.hash(), "for": _asked_for(args), "values": args.flat()}
    # Packed: Linux takes no variable above 128 KiB, and 1,000 paths of data can be more than that.
    text = json.dumps(content, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode())).decode()


def check_payload(args: NeoXArgs, env: Mapping[str, str] | None = None) -> None:
    """Compare what this process has read with what the launcher has checked, if it was sent.

    A payload for other files or overrides is somebody else's: a program that a rank starts inherits
    its environment.

    Raises:
        ConfigError: the same files mean something else here; names this host and the keys.
    """
    text = (os.environ if env is None else env).get(VARIABLE)
    if text is None:
        return
    sent = _read(text)
    if sent["for"] != _asked_for(args) or sent["hash"] == args.hash():
        return
    found = differences(sent["values"], args.flat())
    lines = [f"    {difference}" for difference in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"    and {len(found) - _SHOWN} more")
    raise ConfigError(
        f"host {socket.gethostname()}: the configuration is not the one that the launcher has checked\n"
        f"  found: hash {args.hash()}, launcher's {sent['hash']}; launcher → here:\n"
        + "\n".join(lines)
        + "\n  to do: give every host the same files and the same version of this project"
    )


def _asked_for(args: NeoXArgs) -> dict[str, Any]:
    return {"files": [file.path for file in args.files], "overrides": list(args.overrides)}


def _read(text: str) -> dict[str, Any]:
    try:
        sent = json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
        if isinstance(sent, dict) and {"hash", "for", "values"} <= sent.keys():
            return sent
    except (ValueError, zlib.error):
        pass  # said below
    raise ConfigError(
        f"environment: {VARIABLE} is not what deepy.py writes\n  to do: take it out of the environment"
    )
