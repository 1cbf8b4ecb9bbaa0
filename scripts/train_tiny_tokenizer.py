"""Trains the tokenizer of small random checkpoints: 1,024 ids, the pre-tokenizer and the token flags of the release.

    python scripts/train_tiny_tokenizer.py OUTPUT_DIRECTORY

The files under src/flash41/checkpoint/data/tiny were written by this script once and are shipped as they are;
a test runs it again and compares.  The corpus is generated here from a fixed seed: prose, numbers, code, accents, CJK,
and the fixed texts that the official codec puts into prompts, so that a rendered prompt costs few ids.

Ids 0, 1, 2 are BOS, EOS and padding; then come 256 single bytes and the merges; the other control tokens end the table.
"""

# ruff: noqa: RUF001, SIM905 -- the corpus is meant to hold foreign letters, and word lists read best as prose

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepseek_recipe as recipe
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCAB_SIZE = 1024
SEED = 41
NUM_SENTENCES = 6000
NUM_PROMPT_COPIES = 60
IMAGE_TOKEN = "<｜deepseek_image｜>"

FIRST_TOKENS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
TEXT_TOKENS = (
    "<｜System｜>",
    "<｜fim▁hole｜>",
    "<｜fim▁begin｜>",
    "<｜fim▁end｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
)
"""Not special: skipping special tokens keeps them, which parsers rely on."""
SPECIAL_TOKENS = (
    "<｜/polygon｜>",
    "<｜polygon｜>",
    "<｜/point｜>",
    "<｜point｜>",
    "<｜/box｜>",
    "<｜box｜>",
    "<｜/ref｜>",
    "<｜ref｜>",
)
SPLITS = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
    "[^\r\n"
    r"""\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["""
    "\r\n"
    r"""]*|\s*["""
    "\r\n"
    r"""]+|\s+(?!\S)|\s+""",
)
"""Digits by three from the left; runs of Han and kana; words, punctuation and spaces."""

NOUNS = """answer time page table number word question model token letter river mountain city house garden window door
book teacher student child friend water light morning evening night day week month year road bridge train station
machine program function value list result error message system user tool file name path line order price market
country language story picture music song colour sound voice hand eye head heart mind world place point reason idea
problem example rule step part whole side end start weather rain snow wind sun moon star tree leaf flower bird cat dog
fox horse fish bread apple coffee tea sugar salt kitchen room wall floor paper memory cache block layer""".split()
VERBS = """is was has gives takes makes finds shows knows thinks says asks answers reads writes opens closes starts ends
runs walks turns moves holds keeps brings sends calls needs wants uses helps learns counts adds measures compares
returns explains follows carries becomes remains contains changes grows falls stands""".split()
ADJECTIVES = """small large old new good long short high low first last next other same different clear simple quick
slow quiet bright dark cold warm open closed full empty true false real early late green blue red white black brown
lazy important possible natural general special common certain strong light heavy""".split()
LINKS = """and but because when while where although so that if then before after until with without between under over
from into through about against for of in on at by to as than""".split()
OPENERS = """The A This That Every No Some My Your Our Their Its What Which How Why Here There It We You They He She
One Another""".split()
FOREIGN = (
    "你好，世界！今天的天气很好。我们一起去看山和水。",
    "请用中文回答这个问题，并说明你的理由。谢谢！",
    "模型的输出是一个一个的词。数字和时间都很重要。",
    "これは日本語の文です。カタカナとひらがなを読みます。",
    "안녕하세요. 오늘 날씨가 좋습니다.",
    "Привет, мир! Это простой вопрос, а это ответ.",
    "Où est la bibliothèque ? Le café est fermé, c’est dommage.",
    "Die Straße ist schön, aber das Gebäude wäre größer. Über Köln fährt der Zug.",
    "El niño comió una manzana mañana por la mañana. ¿Qué día es hoy?",
    "Ünïcödé — “quotes” … € £ ½ ° × ≤ → 🙂",
)
CODE = (
    "def add(first, second):\n    return first + second\n",
    "for index in range(10):\n    print(index, values[index])\n",
    'if value is None:\n    raise ValueError("value: got None, expected a number")\n',
    'import json\n\nwith open(path, encoding="utf-8") as file:\n    data = json.load(file)\n',
    '{"name": "value", "items": [1, 2, 3], "ok": true, "none": null}\n',
    '<html>\n  <body class="page">\n    <p>text</p>\n  </body>\n</html>\n',
    "class Point:\n    def __init__(self, x: float, y: float) -> None:\n        self.x = x\n        self.y = y\n",
    "- first item\n- second item\n\n1. one\n2. two\n\n```python\nx = 1\n```\n",
    "https://example.com/path?key=value&other=1\n",
    "| name | value |\n|---|---|\n| a | 1 |\n",
    "const total = items.map((item) => item.price * item.count);\n",
    "SELECT name, count(*) FROM table WHERE value > 10 GROUP BY name;\n",
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def requests() -> list[dict[str, Any]]:
    """Requests whose prompts contain every fixed text of the codec."""
    hello: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
    system = {"role": "system", "content": "You are a helpful assistant."}
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "a", "days": 1}'}}
    round_trip = [
        *hello,
        {"role": "assistant", "content": "", "reasoning_content": "I call the tool.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "sunny"},
    ]
    answer_format = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    return [
        *({"messages": [system, *hello], "reasoning_effort": effort} for effort in ("low", "high", "max")),
        {"messages": [system, *hello], "thinking": {"type": "disabled"}},
        {"messages": hello, "tools": [WEATHER]},
        {"messages": round_trip, "tools": [WEATHER]},
        {"messages": hello, "response_format": answer_format},
    ]


def prompt_texts() -> Iterator[str]:
    """What the codec writes between control tokens."""
    encoding = recipe.DeepseekV41Encoding()
    for body in requests():
        wire = {"model": "DeepSeek-V4.1-Flash", **body}
        request = recipe.ChatCompletionRequest(wire).convert(recipe.ConversionOptions())
        rendered = encoding.render_conversation(request.conversation)
        start = 0
        for span_start, span_end in [*rendered.special_ranges, (len(rendered.prompt), len(rendered.prompt))]:
            if start < span_start:
                yield rendered.prompt[start:span_start]
            start = span_end


def corpus() -> list[str]:
    """All training texts, in a fixed order."""
    dice = random.Random(SEED)

    def pick(words: tuple[str, ...] | list[str]) -> str:
        return words[int(dice.random() * len(words))]  # `random()` alone is stable across Python versions

    def clause() -> str:
        return f"{pick(ADJECTIVES)} {pick(NOUNS)} {pick(VERBS)} {pick(LINKS)} the {pick(ADJECTIVES)} {pick(NOUNS)}"

    texts = []
    for number in range(NUM_SENTENCES):
        tail = (". ", "? ", "! ", ", ", ".\n", ":\n\n")[int(dice.random() * 6)]
        texts.append(f"{pick(OPENERS)} {clause()} {pick(LINKS)} {pick(NOUNS)}{tail}")
        if number % 4 == 0:
            digits = 10 ** (1 + int(dice.random() * 4))
            texts.append(f"{int(dice.random() * digits)} + {int(dice.random() * digits)} = {number}; ")
        if number % 12 == 0:
            texts += [pick(FOREIGN), pick(CODE)]
    return texts + list(prompt_texts()) * NUM_PROMPT_COPIES


def train() -> Tokenizer:
    """The tokenizer, complete with control tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([])
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in SPLITS]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    last_tokens = [AddedToken(token, normalized=True, special=False) for token in TEXT_TOKENS]
    last_tokens.append(AddedToken(IMAGE_TOKEN, normalized=False, special=False))
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(last_tokens) - len(SPECIAL_TOKENS),
        special_tokens=[AddedToken(token, normalized=False, special=True) for token in FIRST_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens(last_tokens)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise SystemExit(f"vocabulary: got {tokenizer.get_vocab_size()}, expected {VOCAB_SIZE}")
    return tokenizer


def files() -> dict[str, str]:
    """Names and texts of the files."""
    config = {
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": FIRST_TOKENS[0],
        "clean_up_tokenization_spaces": False,
        "eos_token": FIRST_TOKENS[1],
        "model_max_length": 1048576,
        "pad_token": FIRST_TOKENS[1],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return {
        "tokenizer.json": train().to_str(pretty=True) + "\n",
        "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=2) + "\n",
    }


def main() -> None:
    """Writes both files into the folder given as the only argument."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (target / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
