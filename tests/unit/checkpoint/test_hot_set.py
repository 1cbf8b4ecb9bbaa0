from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.checkpoint.hot_set import DECAY, HotSet, Move


def test_free_places_are_taken_at_once_and_only_once() -> None:
    hot = HotSet(2)
    assert hot.visit([4, 9, 11]) == [
        Move(expert_id=4, place=0, evicted=None),
        Move(expert_id=9, place=1, evicted=None),
    ]
    assert hot.visit([4, 9]) == []
    assert (hot.place(4), hot.place(9), hot.place(11)) == (0, 1, None)


def test_a_layer_without_places_keeps_nobody() -> None:
    hot = HotSet(0)
    assert [hot.visit([1, 2]) for _ in range(50)] == [[]] * 50


def test_the_more_frequent_expert_ends_up_in_memory() -> None:
    hot = HotSet(1)
    hot.visit([1])
    moves = [move for _ in range(4) for move in hot.visit([2])]
    assert moves == [Move(expert_id=2, place=0, evicted=1)]


def test_two_experts_that_take_turns_do_not_replace_each_other() -> None:
    hot = HotSet(1)
    hot.visit([1])
    assert [hot.visit([2 - turn % 2]) for turn in range(1, 400)] == [[]] * 399


def test_nobody_gives_way_to_an_expert_of_the_same_forward() -> None:
    hot = HotSet(1)
    hot.visit([1])
    assert [hot.visit([1, 2]) for _ in range(20)] == [[]] * 20
    assert hot.place(1) == 0


def test_what_was_hot_long_ago_makes_room_for_what_is_hot_now() -> None:
    hot = HotSet(1)
    for _ in range(500):
        hot.visit([1])
    needed = 0
    while hot.place(2) is None:
        hot.visit([2])
        needed += 1
    # Scores saturate at 1 / (1 - DECAY): the newcomer passes half of it when half of the old one has decayed.
    assert needed < 1 / (1 - DECAY)


@settings(max_examples=60, deadline=None)
@given(
    num_places=st.integers(0, 5),
    visits=st.lists(st.lists(st.integers(0, 11), unique=True, min_size=1, max_size=6), max_size=60),
)
def test_places_and_experts_always_belong_to_each_other(num_places: int, visits: list[list[int]]) -> None:
    hot, holders = HotSet(num_places), dict[int, int]()
    for chosen in visits:
        for move in hot.visit(chosen):
            assert holders.get(move.place) == move.evicted
            assert move.evicted not in chosen
            assert move.expert_id in chosen
            holders[move.place] = move.expert_id
        assert {expert_id: hot.place(expert_id) for expert_id in range(12) if hot.place(expert_id) is not None} == {
            expert_id: place for place, expert_id in holders.items()
        }
        assert set(holders) <= set(range(num_places))


def test_scores_stay_finite_after_very_many_forwards() -> None:
    hot = HotSet(1)
    for _ in range(100_000):
        hot.visit([1])
    assert [hot.visit([2]) for _ in range(200)].count([Move(expert_id=2, place=0, evicted=1)]) == 1
