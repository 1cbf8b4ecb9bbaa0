from flash41.chat.edits import task_token, with_effort, with_task

BOS, SYSTEM = "<bos>", "<sys>"
TEXT = f"{BOS}{SYSTEM}Reasoning Effort: 75 (range 1-100, ...)<user>hi<assistant><think>"


def spans(text: str) -> list[tuple[int, int]]:
    tokens = (BOS, SYSTEM, "<user>", "<assistant>", "<think>")
    return [(text.index(token), text.index(token) + len(token)) for token in tokens if token in text]


def test_an_effort_of_another_length_moves_the_spans_behind_it() -> None:
    for effort in (5, 42, 100):
        text, moved = with_effort(TEXT, spans(TEXT), effort)
        assert text == TEXT.replace("75", str(effort))
        assert moved == spans(text)


def test_only_the_number_that_the_renderer_placed_is_replaced() -> None:
    quoted = TEXT.replace(">hi<", ">Reasoning Effort: 75 (range 1-100,<")
    text, _ = with_effort(quoted, spans(quoted), 9)
    assert text.count("75") == 1
    assert text.index("9") < text.index("75")


def test_a_task_takes_the_place_of_the_header_unless_it_is_an_action() -> None:
    text, found = with_task(TEXT, spans(TEXT), task_token("query"))
    assert text.endswith("<user>hi<｜query｜>")
    assert [text[start:end] for start, end in found] == [BOS, SYSTEM, "<user>", "<｜query｜>"]
    text, found = with_task(TEXT, spans(TEXT), task_token("action"))
    assert text == TEXT + "<｜action｜>"
    assert text[slice(*found[-1])] == "<｜action｜>"
