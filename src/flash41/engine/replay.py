"""Bounded replay: two modes that save work and make answers approximate.  Off unless asked for.

    decoder    layers behind the last owner read the last `window` tokens of a prompt and none before
    prefix     behind a cached prefix no image is restored; its last `window` tokens are computed again instead, with
               windows that begin there; pages stay as they are

Compressed rows are never cut.  Either name is part of `layout_id`.  spec: cache.md section 9, decision D10.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Which of the modes are in effect."""

    window: int
    """Positions a query sees of its own layer."""
    decoder: bool
    """Bounded decoder replay at prefill."""
    prefix: bool
    """Bounded replay behind a cached prefix."""

    @property
    def names(self) -> tuple[str, ...]:
        """Modes in effect, as options are called."""
        modes = {"decoder-replay": self.decoder, "prefix-replay": self.prefix}
        return tuple(name for name, on in modes.items() if on)


NO_REPLAY = Replay(window=1, decoder=False, prefix=False)
"""Everything is exact."""
