"""The tokenizer of the small world: byte-level BPE over rendered prompts, with every control token of the release.

    ids 0, 1, 2          BOS, EOS, pad
    3 .. N-1             256 bytes, then merges, most frequent first
    N ..                 the other control tokens, in the order of the tokenizer of small random checkpoints

It is trained on what the codec renders, so the preambles of tools and reasoning cost few tokens; digits are left out of
the training text, so a number is spelled digit by digit.  The same corpus gives the same file.

    python -m training.tokenizer      rewrites training/vocabulary and the numbers of training/config.json it decides
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from flash41.chat.conversation import ChatCodec
from flash41.chat.tokenizer import Tokenizer
from flash41.checkpoint.embedded import tiny_tokenizer_files
from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import config_from_dict
from flash41.engram.vocabulary import token_map
from training.corpus.mixture import FAMILIES, TRAINING, Mixture, sample
from training.corpus.render import body

FOLDER = Path(__file__).parent / "vocabulary"
CONFIG = Path(__file__).parent / "config.json"
NUM_BASE = 1250
"""BOS, EOS, pad, bytes and merges."""
NUM_SAMPLES = 4000
NUM_FIRST = 3
"""Control tokens that stand before the bytes."""
EVERYTHING = Mixture(weights=dict.fromkeys(FAMILIES, 1.0), shortest=24, longest=160)
IMAGE = "<｜deepseek_image｜>"
NOISE = "<｜System｜>"


def train(num_base: int = NUM_BASE, num_samples: int = NUM_SAMPLES, seed: int = 0) -> tokenizers.Tokenizer:
    """The tokenizer learned from the first samples of the corpus."""
    added = _added_tokens()
    first = [token["content"] for token in added[:NUM_FIRST]]
    learned = _empty()
    trainer = trainers.BpeTrainer(
        vocab_size=num_base,
        special_tokens=first,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learned.train_from_iterator(_texts(num_samples, seed), trainer)
    return _with_control(learned, added)


def files(tokenizer: tokenizers.Tokenizer) -> dict[str, bytes]:
    """What lies beside a checkpoint."""
    document = json.loads(tokenizer.to_str())
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return {
        "tokenizer.json": text.encode() + b"\n",
        "tokenizer_config.json": tiny_tokenizer_files()["tokenizer_config.json"],
    }


def shipped_files() -> dict[str, bytes]:
    """The files in `training/vocabulary`."""
    return {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir())}


def shipped_config() -> ModelConfig:
    """The configuration in `training/config.json`."""
    return config_from_dict(json.loads(CONFIG.read_text(encoding="utf-8")))


def fitted(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A config.json whose ids and vocabulary sizes are those of the tokenizer in `folder`."""
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    classes = token_map(folder / "tokenizer.json", tokenizer.vocab_size)
    image, noise = tokenizer.id_of(IMAGE), tokenizer.id_of(NOISE)
    text = {
        **document["text_config"],
        "vocab_size": tokenizer.vocab_size,
        "dspark_noise_token_id": noise,
        "engram_compressed_vocab_size": int(classes.max()) + 1,
    }
    return {**document, "image_token_id": image, "text_config": text}


def _texts(num_samples: int, seed: int) -> Iterator[str]:
    """Plain text between the control tokens of rendered prompts, and answers."""
    spelling = Tokenizer(_with_control(_bytes_only(), _added_tokens()))
    image = spelling.id_of(IMAGE)
    assert image is not None, "the control tokens of the release hold a placeholder"
    codec = ChatCodec(spelling, image)
    for number in range(num_samples):
        one = sample(seed, TRAINING, number, EVERYTHING)
        rendering, end = codec.render(codec.convert(body(one))), 0
        for start, stop in (*rendering.control_spans, (len(rendering.text), 0)):
            yield _without_digits(rendering.text[end:start])
            end = stop
        yield _without_digits(one.answer)
        yield _without_digits(one.reasoning or "")


def _without_digits(text: str) -> str:
    return "".join(sign for sign in text if not sign.isdigit())


def _added_tokens() -> list[dict[str, Any]]:
    """Control tokens in the order of their ids."""
    document = json.loads(tiny_tokenizer_files()["tokenizer.json"])
    return sorted(document["added_tokens"], key=lambda token: int(token["id"]))


def _empty() -> tokenizers.Tokenizer:
    return _dressed(tokenizers.Tokenizer(models.BPE()))


def _bytes_only() -> tokenizers.Tokenizer:
    alphabet = {sign: number for number, sign in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    return _dressed(tokenizers.Tokenizer(models.BPE(vocab=alphabet, merges=[])))


def _dressed(bare: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The release's pre-tokenizer and decoder around a model."""
    released = tokenizers.Tokenizer.from_str(tiny_tokenizer_files()["tokenizer.json"].decode())
    bare.pre_tokenizer = released.pre_tokenizer
    bare.decoder = decoders.ByteLevel()
    bare.post_processor = processors.ByteLevel(trim_offsets=False)
    return bare


def _with_control(learned: tokenizers.Tokenizer, added: list[dict[str, Any]]) -> tokenizers.Tokenizer:
    for token in added:
        kind = tokenizers.AddedToken(token["content"], normalized=token["normalized"], special=token["special"])
        (learned.add_special_tokens if token["special"] else learned.add_tokens)([kind])
    return learned


def main() -> None:
    """Trains, writes the files, and fits the configuration to them."""
    FOLDER.mkdir(exist_ok=True)
    for name, data in files(train()).items():
        (FOLDER / name).write_bytes(data)
    document = fitted(json.loads(CONFIG.read_text(encoding="utf-8")), FOLDER)
    CONFIG.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
