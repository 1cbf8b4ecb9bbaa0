"""The hooks of an engine for one model, as records that a program can place them by."""

from collections.abc import Collection, Mapping

from flash41.tools.adapters.all import shown
from flash41.tools.adapters.places import parsed
from flash41.tools.adapters.record import Adapter, Hook


def hook_table(adapter: Adapter, points: Collection[str], num_layers: int) -> list[dict[str, int | str | None]]:
    """One record for each of `points` that the engine shows, in the order of the points' names.

    point, name         our name and theirs
    place               where the hook stands, as text; its parts follow
    root                `model` or `draft`
    side                input, output, tensor or edit
    target, key, call   module path, tensor or edit; argument or element; which call of a forward
    each                attribute of the module that tells of how many rows the last is kept
    change, order_of    how our array becomes theirs; the name of the array whose order it follows
    """
    numbers = {"last": num_layers - 1}
    return [_record(adapter, point, hook, {**values, **numbers}) for point, hook, values in shown(adapter, points)]


def _record(adapter: Adapter, point: str, hook: Hook, numbers: Mapping[str, int]) -> dict[str, int | str | None]:
    text = hook.place.format(**numbers)
    place = parsed(text)
    leader = next((other.name.format(**numbers) for other in adapter.hooks if other.point == hook.order_of), None)
    return {
        "point": point,
        "name": hook.name.format(**numbers),
        "place": text,
        "root": place.root,
        "side": place.side,
        "target": place.target,
        "key": place.key,
        "call": place.call,
        "each": place.each,
        "change": hook.change.name,
        "order_of": leader,
    }
