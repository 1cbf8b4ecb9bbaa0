"""Where a hook stands: written as text that programs read, and the hooks that show what stands there.

    model.layers.3.attn output 1            element 1 of what the module returns
    model.layers.3.attn input x             the argument x it is called with, by name or by number
    ... call 1                              of its second call in one forward (0 if it is not said)
    ... each compress_ratio                 of the rows, the last of every `module.compress_ratio`
    tensor kq-3                             a named tensor of a graph; `call` as above
    edit FILE FUNCTION: WHAT                no hook sees it; WHAT is to be kept inside that function

A path that begins with `draft.` is one of the draft model, which engines keep apart.
"""

from dataclasses import dataclass

from flash41.tools.adapters.changes import SAME, Change
from flash41.tools.adapters.record import Hook

DRAFT = "draft."


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place in its parts."""

    root: str
    """`model` or `draft`: the module that `target` is sought in."""
    side: str
    """`input`, `output`, `tensor` or `edit`."""
    target: str
    """Path of the module, name of the tensor, or the edit in words."""
    key: int | str | None = None
    """Element of the output or argument of the call; None: the output itself."""
    call: int = 0
    """Which call of the module within one forward, or which tensor of that name."""
    each: str | None = None
    """Attribute of the module that tells of how many rows one is kept; None: all are."""


def parsed(place: str) -> Place:
    """The parts of a place."""
    first, _, rest = place.partition(" ")
    if first == "edit":
        return Place(root="model", side="edit", target=rest)
    words = rest.split()
    if first == "tensor":
        target = words.pop(0)
        return Place(root="model", side="tensor", target=target, call=_call(words))
    root, target = ("draft", first.removeprefix(DRAFT)) if first.startswith(DRAFT) else ("model", first)
    side, *words = words
    key = words.pop(0) if words and words[0] not in ("call", "each") else None
    each = words[words.index("each") + 1] if "each" in words else None
    number = int(key) if key is not None and key.isdigit() else key
    return Place(root=root, side=side, target=target, key=number, call=_call(words), each=each)


def _call(words: list[str]) -> int:
    return int(words[words.index("call") + 1]) if "call" in words else 0


def seen(point: str, place: str, change: Change = SAME, order_of: str | None = None) -> Hook:
    """A hook at a place that shows the point; the array is named after the place."""
    name = place.partition(" each ")[0].removeprefix("tensor ").replace("{last}", "last").replace(" ", ".")
    return Hook(point=point, name=name, place=place, change=change, order_of=order_of)


def edited(point: str, name: str, where: str, what: str, change: Change = SAME, order_of: str | None = None) -> Hook:
    """A point that only an edit shows: keep `what` in the function `where` (FILE FUNCTION), under `name`."""
    return Hook(point=point, name=name, place=f"edit {where}: {what}", change=change, order_of=order_of)
