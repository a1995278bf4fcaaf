"""Comparable identities of a tokenizer and a chat template, read from a model folder's own files. No torch.

Two folders agree when their *behaviour* files agree: the JSON of `tokenizer.json` less what changes from call to call
(padding, truncation), and the text of the chat template. File names and formatting do not count.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

# Not the post-processor: it frames a bare text (BOS, EOS), and here the chat template does that.
_TOKENIZER_PARTS = ("normalizer", "pre_tokenizer", "decoder", "model", "added_tokens")


def hash_tokenizer_json(text: str) -> str:
    """16 hex digits of the parts of a `tokenizer.json` that decide which ids a text becomes."""
    content = json.loads(text)
    parts: dict[str, Any] = {name: content.get(name) for name in _TOKENIZER_PARTS}
    return _digest(json.dumps(parts, sort_keys=True, ensure_ascii=True))


def hash_template(template: str) -> str:
    """16 hex digits of a chat template's text; blank space at its ends does not count."""
    return _digest(template.strip())


def tokenizer_hash(folder: Path) -> str | None:
    """Hash of the tokenizer in `folder`; None where it has no `tokenizer.json`."""
    path = folder / "tokenizer.json"
    return hash_tokenizer_json(path.read_text(encoding="utf-8")) if path.exists() else None


def read_template(folder: Path) -> str | None:
    """The default chat template in `folder`, from either place where transformers keeps it; None: there is none."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    if not config.exists():
        return None
    template = json.loads(config.read_text(encoding="utf-8")).get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("default")
    return template


def template_hash(folder: Path) -> str | None:
    """Hash of the default chat template in `folder`; None where it has none."""
    template = read_template(folder)
    return None if template is None else hash_template(template)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
