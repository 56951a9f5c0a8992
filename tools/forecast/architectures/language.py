"""Encoder transformers of the measured table, from their public configurations."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from onnx import TensorProto

from forecast.architectures.graph import Graph

_LABELS = 2


@dataclass(frozen=True)
class Encoder:
    """Sizes of an encoder; the defaults are those of BERT base.

    Parameters
    ----------
    vocabulary : int
        Tokens.
    layers, hidden, heads, feed_forward : int
        Sizes of the layers.
    embedding : int
        Width of the embeddings; 0 is that of the layers.
    has_types : bool
        Takes ``token_type_ids``.
    activation : str
        ``erf`` or ``tanh``: the form of GELU.
    shares_layers : bool
        All layers have the same weights.
    relative_span : int
        Buckets of disentangled attention; 0 without.
    positions : int
        Rows of the table of positions; 0 without.
    """

    vocabulary: int
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    feed_forward: int = 3072
    embedding: int = 0
    has_types: bool = True
    activation: str = "erf"
    shares_layers: bool = False
    relative_span: int = 0
    positions: int = 512


def _roberta(vocabulary: int) -> Encoder:
    return Encoder(vocabulary, has_types=False, positions=514)


def _large(base: Encoder) -> Encoder:
    return replace(base, layers=24, hidden=1024, heads=16, feed_forward=4096)


def _distil(vocabulary: int) -> Encoder:
    return Encoder(vocabulary, layers=6, has_types=False)


_ENGLISH, _CASED, _CHINESE = 30522, 28996, 21128
_TINY = Encoder(_ENGLISH, layers=2, hidden=128, heads=2, feed_forward=512)
_ALBERT = Encoder(30000, embedding=128, activation="tanh", shares_layers=True)
_MPNET = Encoder(30527, has_types=False, positions=514)

#: Name in the measured table -> sizes.
ENCODERS = {
    "albert-base-v2": _ALBERT,
    "allenai/scibert_scivocab_uncased": Encoder(31090),
    "avichr/heBERT_sentiment_analysis": Encoder(30522),
    "BaptisteDoyen/camembert-base-xnli": _roberta(32005),
    "beomi/kcbert-base": Encoder(30000, positions=300),
    "bert-base-cased": Encoder(_CASED),
    "bert-base-multilingual-cased": Encoder(119547),
    "bert-base-multilingual-uncased": Encoder(105879),
    "bert-large-uncased": _large(Encoder(_ENGLISH)),
    "bhadresh-savani/distilbert-base-uncased-emotion": _distil(_ENGLISH),
    "camembert-base": _roberta(32005),
    "cardiffnlp/twitter-roberta-base-sentiment-latest": _roberta(50265),
    "ckiplab/albert-tiny-chinese": replace(
        _ALBERT, vocabulary=_CHINESE, layers=4, hidden=312, feed_forward=1248
    ),
    "cl-tohoku/bert-base-japanese-whole-word-masking": Encoder(32000),
    "dbmdz/bert-base-italian-xxl-cased": Encoder(32102),
    "dbmdz/electra-base-german-europeana-cased-discriminator": Encoder(32000),
    "deepset/roberta-base-squad2": _roberta(50265),
    "distilbert-base-cased": _distil(_CASED),
    "distilbert-base-cased-distilled-squad": _distil(_CASED),
    "distilbert-base-uncased": _distil(_ENGLISH),
    "distilbert-base-uncased-distilled-squad": _distil(_ENGLISH),
    "distilbert-base-uncased-finetuned-sst-2-english": _distil(_ENGLISH),
    "dslim/bert-base-NER-uncased": Encoder(_ENGLISH),
    "finiteautomata/beto-sentiment-analysis": Encoder(31002),
    "google/bert_uncased_L-2_H-128_A-2": _TINY,
    "google/electra-base-discriminator": Encoder(_ENGLISH),
    "google/electra-small-discriminator": Encoder(
        _ENGLISH, hidden=256, heads=4, feed_forward=1024, embedding=128
    ),
    "hfl/chinese-bert-wwm-ext": Encoder(_CHINESE),
    "hfl/chinese-roberta-wwm-ext": Encoder(_CHINESE),
    "kit-nlp/bert-base-japanese-sentiment-cyberbullying": Encoder(32768),
    "Maltehb/danish-bert-botxo": Encoder(32000),
    "microsoft/deberta-v3-small": Encoder(128100, layers=6, has_types=False, relative_span=512, positions=0),
    "monologg/bert-base-cased-goemotions-original": Encoder(_CASED),
    "mrm8488/bert-spanish-cased-finetuned-ner": Encoder(31002),
    "nlptown/bert-base-multilingual-uncased-sentiment": Encoder(105879),
    "prajjwal1/bert-tiny": _TINY,
    "ProsusAI/finbert": Encoder(_ENGLISH),
    "roberta-large": _large(_roberta(50265)),
    "roberta-large-mnli": _large(_roberta(50265)),
    "Rostlab/prot_bert": replace(_large(Encoder(30)), layers=30, positions=40000),
    "sentence-transformers/all-MiniLM-L6-v2": Encoder(_ENGLISH, layers=6, hidden=384, feed_forward=1536),
    "sentence-transformers/all-mpnet-base-v2": _MPNET,
    "sentence-transformers/bert-base-nli-mean-tokens": Encoder(_ENGLISH),
    "sentence-transformers/msmarco-distilbert-base-tas-b": _distil(_ENGLISH),
    "sentence-transformers/paraphrase-mpnet-base-v2": _MPNET,
    "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2": Encoder(
        250037, hidden=384, feed_forward=1536
    ),
    "vinai/bertweet-base": _roberta(64001),
    "xlm-roberta-base": _roberta(250002),
    "xlm-roberta-large-finetuned-conll03-english": _large(_roberta(250002)),
    "yiyanghkust/finbert-tone": Encoder(30873),
}


def encoder(model: str, task: str, tokens: int) -> Graph:
    """Write the graph of a model with the head of a task, for one sample."""
    writer = _Writer(model, ENCODERS[model], tokens)
    writer.write(task)
    return writer.graph


class _Writer:
    def __init__(self, name: str, sizes: Encoder, tokens: int) -> None:
        self.graph = Graph(name)
        self._sizes = sizes
        self._tokens = tokens
        self._shared: dict[str, str] = {}

    def write(self, task: str) -> None:
        graph, sizes, tokens = self.graph, self._sizes, self._tokens
        hidden = self._embedded()
        for layer in range(sizes.layers):
            place = "layer" if sizes.shares_layers else f"layer{layer}"
            hidden = self._layer(hidden, place)
        if task == "fill-mask":
            width = sizes.embedding or sizes.hidden
            value = self._norm(
                self._gelu(self._linear(hidden, sizes.hidden, width, "transform")), width, "head"
            )
            graph.output(
                self._linear(value, width, sizes.vocabulary, "decoder"), (1, tokens, sizes.vocabulary)
            )
        elif task == "question-answering":
            logits = self._linear(hidden, sizes.hidden, 2, "span")
            for part in graph.add_all("Split", logits, outputs=2, axis=2):
                graph.output(graph.add("Squeeze", part, graph.integers(2)), (1, tokens))
        elif task == "token-classification":
            graph.output(self._linear(hidden, sizes.hidden, 9, "tokens"), (1, tokens, 9))
        elif task == "text-classification":
            pooled = graph.add("Gather", hidden, graph.add("Squeeze", graph.integers(0)), axis=1)
            pooled = graph.add("Tanh", self._linear(pooled, sizes.hidden, sizes.hidden, "pooler"))
            graph.output(self._linear(pooled, sizes.hidden, _LABELS, "classes"), (1, _LABELS))
        else:
            graph.output(hidden, (1, tokens, sizes.hidden))

    def _embedded(self) -> str:
        graph, sizes, tokens = self.graph, self._sizes, self._tokens
        width = sizes.embedding or sizes.hidden
        ids = graph.input("input_ids", (1, tokens), TensorProto.INT64)
        mask = graph.input("attention_mask", (1, tokens), TensorProto.INT64)
        value = graph.add("Gather", graph.weight(sizes.vocabulary, width), ids)
        if sizes.has_types:
            types = graph.input("token_type_ids", (1, tokens), TensorProto.INT64)
            value = graph.add("Add", value, graph.add("Gather", graph.weight(2, width), types))
        if sizes.positions:
            value = graph.add("Add", value, graph.weight(1, tokens, width))
        value = self._norm(value, width, "embeddings")
        if width != sizes.hidden:
            value = self._linear(value, width, sizes.hidden, "widen")
        # The mask is added to all scores.
        wide = graph.add("Unsqueeze", graph.add("Cast", mask, to=TensorProto.FLOAT), graph.integers(1, 2))
        self._mask = graph.add("Mul", graph.add("Sub", graph.number(1.0), wide), graph.number(-65504.0))
        return value

    def _layer(self, hidden: str, place: str) -> str:
        graph, sizes = self.graph, self._sizes
        width = sizes.hidden
        attended = self._attention(hidden, place)
        value = graph.add("Add", self._linear(attended, width, width, f"{place}.out"), hidden)
        value = self._norm(value, width, f"{place}.norm1")
        inner = self._gelu(self._linear(value, width, sizes.feed_forward, f"{place}.up"))
        outer = self._linear(inner, sizes.feed_forward, width, f"{place}.down")
        return self._norm(graph.add("Add", outer, value), width, f"{place}.norm2")

    def _attention(self, hidden: str, place: str) -> str:
        graph, sizes, tokens = self.graph, self._sizes, self._tokens
        size = sizes.hidden // sizes.heads
        split = graph.integers(1, tokens, sizes.heads, size)
        query, key, value = (
            graph.add("Reshape", self._linear(hidden, sizes.hidden, sizes.hidden, f"{place}.{name}"), split)
            for name in ("query", "key", "value")
        )
        query, value = (graph.add("Transpose", one, perm=[0, 2, 1, 3]) for one in (query, value))
        flipped = graph.add("Transpose", key, perm=[0, 2, 3, 1])
        scores = graph.add("MatMul", query, flipped)
        if sizes.relative_span:
            upright = graph.add("Transpose", key, perm=[0, 2, 1, 3])
            for one, name in ((query, "by-key"), (upright, "by-query")):
                table = self._weight(f"{place}.{name}", sizes.heads, size, sizes.relative_span)
                index = self._weight(f"{place}.{name}.index", 1, sizes.heads, tokens, tokens)
                places = graph.add("Cast", index, to=TensorProto.INT64)
                against = graph.add("MatMul", one, table)
                scores = graph.add("Add", scores, graph.add("GatherElements", against, places, axis=3))
        scores = graph.add("Div", scores, graph.number(math.sqrt(size)))
        shares = graph.add("Softmax", graph.add("Add", scores, self._mask), axis=-1)
        mixed = graph.add("Transpose", graph.add("MatMul", shares, value), perm=[0, 2, 1, 3])
        return graph.add("Reshape", mixed, graph.integers(1, tokens, sizes.hidden))

    def _linear(self, value: str, inputs: int, outputs: int, place: str) -> str:
        product = self.graph.add("MatMul", value, self._weight(place, inputs, outputs))
        return self.graph.add("Add", product, self._weight(f"{place}.bias", outputs))

    def _norm(self, value: str, width: int, place: str) -> str:
        scale, bias = self._weight(f"{place}.scale", width), self._weight(f"{place}.shift", width)
        return self.graph.add("LayerNormalization", value, scale, bias, axis=-1)

    def _gelu(self, value: str) -> str:
        graph = self.graph
        if self._sizes.activation == "tanh":
            cube = graph.add("Pow", value, graph.number(3.0))
            inner = graph.add("Add", value, graph.add("Mul", cube, graph.number(0.044715)))
            curve = graph.add("Tanh", graph.add("Mul", inner, graph.number(0.797885)))
        else:
            curve = graph.add("Erf", graph.add("Div", value, graph.number(math.sqrt(2))))
        product = graph.add("Mul", value, graph.add("Add", curve, graph.number(1.0)))
        return graph.add("Mul", product, graph.number(0.5))

    def _weight(self, place: str, *dims: int) -> str:
        if place not in self._shared:
            self._shared[place] = self.graph.weight(*dims)
        return self._shared[place]
