"""Pictures through the object that users hold."""

from pathlib import Path

import pytest

from flash41.chat.conversation import Message
from flash41.chat.image_errors import ImageError
from flash41.chat.images import Picture, picture
from flash41.chat.parts import Image, data_url
from flash41.config.huggingface import read_config
from flash41.engine.llm import LLM
from flash41.engine.llm_images import fitting, raw_pictures
from flash41.engine.prompt_images import image_sizes
from flash41.engine.request import SamplingParams
from flash41.errors import RequestError
from helpers.image_files import encoded, pattern

PARAMS = SamplingParams(max_tokens=3, seed=1)
PNG = encoded(pattern(60, 45))
COST = 10
PLACE = "<｜deepseek_image｜>"


@pytest.fixture(scope="module")
def llm(tiny_directory: Path) -> LLM:
    return LLM(tiny_directory, max_model_len=160)


def shown(llm: LLM, data: bytes = PNG) -> Picture:
    return picture(data, image_sizes(llm.config.vision))


def test_bytes_paths_urls_and_wire_parts_are_the_same_picture(llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(PNG)
    wire = {"type": "image_url", "image_url": {"url": data_url(PNG)}}
    answers = [
        llm.chat([Message(role="user", content=("What?", part))], PARAMS)
        for part in (Image(PNG), Image(file), Image(data_url(PNG)), wire)
    ]
    assert len({answer.output_ids for answer in answers}) == 1
    assert {answer.image_tokens for answer in answers} == {(COST,)}
    placeholder = llm.config.tokens.image
    assert all(answer.prompt_ids.count(placeholder) == COST for answer in answers)
    assert llm.engine.stats.num_pictures_found >= 3


def test_raw_prompts_have_pictures_in_the_place_of_their_placeholders(llm: LLM) -> None:
    prompts = [f"a{PLACE}b", "no picture", f"{PLACE}{PLACE}"]
    images = [[PNG], [], [shown(llm), Image(PNG, detail="low")]]
    answers = llm.generate(prompts, PARAMS, images=images)
    assert [answer.image_tokens for answer in answers] == [(COST,), (), (COST, COST)]
    alone = llm.generate(prompts[0], PARAMS, images=[[PNG]])
    assert alone[0].output_ids == answers[0].output_ids


def test_streams_take_pictures(llm: LLM) -> None:
    ids = llm.encode(f"a{PLACE}b")
    tokens = [event.token.token_id for event in llm.stream(ids, PARAMS, pictures=[shown(llm)])]
    assert tuple(tokens) == llm.generate(f"a{PLACE}b", PARAMS, images=[[PNG]])[0].output_ids


def test_faults_of_pictures_are_told_with_their_prompt_before_anything_runs(llm: LLM) -> None:
    before = llm.engine.stats.num_lookups
    with pytest.raises(RequestError) as raised:
        llm.generate([f"a{PLACE}", f"b{PLACE}", "c"], PARAMS, images=[[b"no image"], [], [PNG]])
    message = str(raised.value)
    assert "prompt 0: image 1: image: got 'a file that begins 6e 6f" in message
    assert "prompt 2: placeholders of images (id 1015): got 0, expected one for each of 1 images" in message
    assert "prompt 1" not in message  # a placeholder without pictures is an id like any other
    assert llm.engine.stats.num_lookups == before


@pytest.mark.parametrize("images", [[[PNG]], [PNG, PNG], [[], [], []]])
def test_there_is_one_list_of_images_per_prompt(llm: LLM, images: list[list[bytes]]) -> None:
    with pytest.raises(RequestError, match=r"one per prompt \(2\)|a list of images for each prompt"):
        llm.generate(["a", "b"], PARAMS, images=images)


def test_a_conversation_with_a_broken_picture_names_it(llm: LLM) -> None:
    with pytest.raises(ImageError, match=r"^image 2 \(messages\[0\]\): "):
        llm.chat([Message(role="user", content=(Image(PNG), Image(b"GIF89a")))], PARAMS)


def test_decoding_ends_where_the_longest_request_does(llm: LLM) -> None:
    taken = []

    def pictures() -> object:
        for _ in range(100):
            taken.append(1)
            yield shown(llm)

    with pytest.raises(RequestError, match=r"prompt length with 4 images: got 41, expected fewer tokens than max_mod"):
        fitting([0] * 5, pictures(), 40)  # type: ignore[arg-type]
    assert len(taken) == 4


def test_an_engine_for_text_only_refuses_pictures_and_keeps_no_room_for_them(tiny_directory: Path) -> None:
    text = LLM(tiny_directory, max_model_len=160, images=False)
    assert text.plan.pictures.num_rows == 0
    assert text.engine.pictures is None
    with pytest.raises(
        RequestError, match="got '1 images', expected text, as this engine was opened without its image"
    ):
        text.chat([Message(role="user", content=(Image(PNG),))], PARAMS)
    assert text.chat([Message(role="user", content="hello")], PARAMS).image_tokens == ()


def test_a_drafting_engine_says_that_it_does_not_draft_for_pictures(tiny_directory: Path) -> None:
    drafting = LLM(tiny_directory, max_model_len=160, draft="on")
    with_picture, text = drafting.generate([f"a{PLACE}b", "hello"], PARAMS, images=[[PNG], []])
    assert with_picture.undrafted_because == "images in the request"
    assert (with_picture.num_draft_tokens, text.undrafted_because) == (0, None)
    assert text.num_draft_tokens > 0


def test_raw_pictures_are_refused_with_their_number(tiny_directory: Path) -> None:
    sizes = image_sizes(read_config(tiny_directory).vision)
    with pytest.raises(RequestError, match=r"image 2: image nowhere\.png: got"):
        raw_pictures([PNG, Path("nowhere.png")], sizes)
    with pytest.raises(RequestError, match="image 1: image detail: got 'huge'"):
        raw_pictures([Image(PNG, detail="huge")], sizes)
