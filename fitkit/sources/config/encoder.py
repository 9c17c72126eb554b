"""Encoders, embedders and rerankers, and the heads of classifiers and reward models over any text model. Encoders keep no cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fitkit.sources.config import Shape, family
from fitkit.sources.config.build import Build
from fitkit.sources.config.view import MOST_LAYERS, Config


@dataclass(slots=True, kw_only=True)
class Encoder:
    """The sizes of an encoder, read once."""

    build: Build
    hidden: int
    heads: int
    ffn: int
    vocab: int
    context: int

    @classmethod
    def read(cls, config: Config, *, context: int) -> Encoder:
        """BERT's keys or GPT-2's."""
        hidden = config.whole("hidden_size", "n_embd")
        return cls(
            build=Build(config.whole("num_hidden_layers", "n_layer", high=MOST_LAYERS)),
            hidden=hidden,
            heads=config.whole("num_attention_heads", "n_head"),
            ffn=config.whole("intermediate_size", "n_inner", default=4 * hidden),
            vocab=config.whole("vocab_size"),
            context=config.whole("max_position_embeddings", "n_positions", default=context),
        )

    def embeddings(self, positions: int, types: int, module: str = "embeddings.") -> None:
        """Tables of words, positions and types, and their norm."""
        for role, name, rows in (
            ("token_embd", "word_embeddings", self.vocab),
            ("position_embd", "position_embeddings", positions),
            ("token_types_embd", "token_type_embeddings", types),
        ):
            self.build.add(role, (self.hidden, rows), module=module + name)
        self.norms("token_embd_norm", layers=None)

    def norms(self, *roles: str, layers: Sequence[int] | None = (), bias: bool = True) -> None:
        """Norms of the hidden width: in all layers, or one for the model (`layers` None)."""
        where = None if layers is None else tuple(layers) or tuple(self.build.all)
        for role in roles:
            self.build.add(role, (self.hidden,), where, module=role)
            if bias:
                self.build.add(f"{role}.bias", (self.hidden,), where, module=role)

    def linear(self, role: str, n_in: int, n_out: int, name: str, *, bias: bool = True) -> None:
        """One linear layer in every block."""
        self.build.add(role, (n_in, n_out), self.build.all, module=name)
        if bias:
            self.build.add(f"{role}.bias", (n_out,), self.build.all, module=name)

    def head(self, role: str, n_in: int, n_out: int, name: str, *, bias: bool = True) -> None:
        """One linear layer for the model, whole on every rank."""
        self.build.add(role, (n_in, n_out), module=name, shard="replicated")
        if bias:
            self.build.add(f"{role}.bias", (n_out,), module=name, shard="replicated")

    def shape(self, context: int, gguf: str) -> Shape:
        """The finished shape."""
        self.build.wide(self.build.all, heads=self.heads, ffn_dim=self.ffn)
        return Shape(
            build=self.build,
            hidden_size=self.hidden,
            vocab_size=self.vocab,
            context=context,
            tied_embeddings=True,
            gguf_architecture=gguf,
            extra={"encoder": True},
        )


@family("bert", "xlm-roberta", "roberta", "camembert", architectures=("BertModel", "XLMRobertaModel", "RobertaModel"))
def bert(config: Config) -> Shape:
    """BERT and RoBERTa: biases everywhere, two norms a layer, a pooler; RoBERTa's positions start at 2, and its classifiers have no pooler."""
    roberta = config.text("model_type", default="bert") != "bert"
    e = Encoder.read(config, context=514 if roberta else 512)
    e.embeddings(e.context, config.whole("type_vocab_size", default=1 if roberta else 2))
    block = "encoder.layer.{}."
    for role, name in (("attn_q", "query"), ("attn_k", "key"), ("attn_v", "value")):
        e.linear(role, e.hidden, e.hidden, f"{block}attention.self.{name}")
    e.linear("attn_output", e.hidden, e.hidden, f"{block}attention.output.dense")
    e.linear("ffn_up", e.hidden, e.ffn, f"{block}intermediate.dense")
    e.linear("ffn_down", e.ffn, e.hidden, f"{block}output.dense")
    e.norms("attn_output_norm", "layer_output_norm")
    architecture = _architecture(config)
    if "MaskedLM" in architecture:
        e.head("cls", e.hidden, e.hidden, "lm_head.dense" if roberta else "cls.predictions.transform.dense")
        e.norms("cls.norm", layers=None)
        e.build.add("output.bias", (e.vocab,), module="cls.predictions")
    elif "Classification" in architecture:
        e.head("cls", e.hidden, e.hidden, "classifier.dense" if roberta else "pooler.dense")
        e.head("cls.output", e.hidden, labels(config), "classifier.out_proj" if roberta else "classifier")
    else:
        e.head("cls", e.hidden, e.hidden, "pooler.dense")
    return e.shape(max(1, e.context - 2) if roberta else e.context, "bert")


@family("nomic_bert", architectures=("NomicBertModel",))
def nomic_bert(config: Config) -> Shape:
    """Nomic's BERT: rotary positions, no biases, a gated feed-forward."""
    e = Encoder.read(config, context=2048)
    e.embeddings(0, config.whole("type_vocab_size", default=2, low=0))
    bias = config.flag("qkv_proj_bias", default=False)
    block = "encoder.layers.{}."
    e.linear("attn_qkv", e.hidden, 3 * e.hidden, f"{block}attn.Wqkv", bias=bias)
    e.linear("attn_output", e.hidden, e.hidden, f"{block}attn.out_proj", bias=bias)
    for role, name in (("ffn_gate", "fc12"), ("ffn_up", "fc11")):
        e.linear(role, e.hidden, e.ffn, f"{block}mlp.{name}", bias=False)
    e.linear("ffn_down", e.ffn, e.hidden, f"{block}mlp.fc2", bias=False)
    e.norms("attn_output_norm", "layer_output_norm")
    return e.shape(e.context, "nomic-bert")


@family("modernbert", architectures=("ModernBertModel",))
def modernbert(config: Config) -> Shape:
    """ModernBERT: rotary positions, no biases, a gated feed-forward in one matrix, no norm before the first attention."""
    e = Encoder.read(config, context=8192)
    e.build.add("token_embd", (e.hidden, e.vocab), module="embeddings.tok_embeddings")
    e.norms("token_embd_norm", "output_norm", layers=None, bias=False)
    block = "layers.{}."
    e.linear("attn_qkv", e.hidden, 3 * e.hidden, f"{block}attn.Wqkv", bias=False)
    e.linear("attn_output", e.hidden, e.hidden, f"{block}attn.Wo", bias=False)
    e.linear("ffn_up", e.hidden, 2 * e.ffn, f"{block}mlp.Wi", bias=False)
    e.linear("ffn_down", e.ffn, e.hidden, f"{block}mlp.Wo", bias=False)
    if e.build.n > 1:
        e.norms("attn_norm", layers=range(1, e.build.n), bias=False)
    e.norms("ffn_norm", bias=False)
    if "Masked" in _architecture(config) or "Classification" in _architecture(config):
        e.head("cls", e.hidden, e.hidden, "head.dense", bias=False)
        e.norms("cls.norm", layers=None, bias=False)
    if "Masked" in _architecture(config):
        e.build.add("output.bias", (e.vocab,), module="decoder")
    if "Classification" in _architecture(config):
        e.head("cls.output", e.hidden, labels(config), "classifier")
    return e.shape(e.context, "modern-bert")


def labels(config: Config) -> int:
    """How many classes a classifier tells apart: num_labels, else the names listed, else the two of transformers' default."""
    named = config.view("id2label")
    count = config.whole("num_labels", default=len(named.mapping) if named and named.mapping else 2, high=10**6)
    config.read["num_labels"] = count  # remembered as a number, not as the list of names
    return count


# Architectures that end in "Model" and yet carry their language-model head.
_WITH_HEAD = ("LMHeadModel", "ChatGLMModel", "ChatModel")


def other_head(config: Config, shape: Shape, architecture: str) -> None:
    """Where a decoder's file ends in something else than words: take the head back, add the classifier's or the reward's."""
    if shape.extra and shape.extra.get("encoder"):
        return
    score = 0
    if architecture.endswith(("ForSequenceClassification", "ForTokenClassification")):
        score = labels(config)
    elif architecture.endswith("ForRewardModel"):
        score = 1
    elif not architecture.endswith("Model") or architecture.endswith(_WITH_HEAD):
        return
    build = shape.build
    kept = [place for place, tensor in enumerate(build.tensors) if tensor.role not in ("output", "output.bias")]
    build.tensors, build.modules = [build.tensors[i] for i in kept], [build.modules[i] for i in kept]
    hidden = shape.hidden_size
    if architecture.startswith("Qwen2ForReward"):  # a layer before the score, both with biases
        for role, n_out in (("cls", hidden), ("cls.output", score)):
            build.add(role, (hidden, n_out), module="score", shard="replicated")
            build.add(f"{role}.bias", (n_out,), module="score", shard="replicated")
    elif score:
        build.add("cls.output", (hidden, score), module="score", shard="replicated")
    shape.extra = {**(shape.extra or {}), "pooling": True}


def _architecture(config: Config) -> str:
    """The first of `architectures`."""
    named = config.entries("architectures", default=())
    return named[0] if named and isinstance(named[0], str) else ""
