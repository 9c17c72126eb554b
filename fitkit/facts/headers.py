"""How much of a GGUF is header: metadata and the tokenizer, which lies in every file beside the tensors."""

from __future__ import annotations

from fitkit import facts


def header_bytes(family: str, vocab: int) -> tuple[int, str]:
    """The bytes and how they are known: "file" (a file's size less its tensors', same tokenizer) or "estimate" (from the vocabulary).

    A token takes about 24 bytes with its score and type; a byte-pair tokenizer brings its merges as well, 40 to 65 together.
    """
    for row in facts.rows("tokenizers"):
        if int(row["vocab"]) == vocab and (not row["families"] or family in row["families"].split("|")):
            return int(row["header_bytes"]), row["basis"]
    return vocab * (24 if vocab <= 33_000 else 44), "estimate"
