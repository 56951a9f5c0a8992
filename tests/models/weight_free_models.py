"""Models without weights in the form of exporters of language models, and their checkpoints.

The weights are inputs of the graph after the data inputs, and a linear layer transposes its weight in the
graph. The metadata names a file of the checkpoint by its position and a tensor by its key.
"""

import json

import numpy as np
from onnx import helper

import safetensors_files
import session_models

HIDDEN, VOCABULARY = 24, 40
KEY = "com.qti.aisw.extdata"
ELEM_TYPES = {"float32": 1, "float64": 11, "float16": 10, "bfloat16": 16}


def arrays(seed=0, dtype=np.float32):
    """Weights of one small layer between an embedding and a head that has the same values."""
    generator = np.random.default_rng(seed)
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.layers.0.mlp.up_proj.weight": (2 * HIDDEN, HIDDEN),
        "model.layers.0.mlp.down_proj.weight": (HIDDEN, 2 * HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    return {
        name: (generator.standard_normal(shape) / 4).astype(np.float32).astype(dtype)
        for name, shape in shapes.items()
    }


def graph(dtype="float32"):
    """``logits`` of ``input_ids``; the weights are inputs of this type."""
    elem_type = ELEM_TYPES[dtype]
    shapes = {name: array.shape for name, array in arrays().items()}
    shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    nodes = [
        helper.make_node("Gather", ["model.embed_tokens.weight", "input_ids"], ["e"]),
        helper.make_node("Transpose", ["model.layers.0.mlp.up_proj.weight"], ["up_t"], perm=[1, 0]),
        helper.make_node("MatMul", ["e", "up_t"], ["up"]),
        helper.make_node("Relu", ["up"], ["act"]),
        helper.make_node("Transpose", ["model.layers.0.mlp.down_proj.weight"], ["down_t"], perm=[1, 0]),
        helper.make_node("MatMul", ["act", "down_t"], ["down"]),
        helper.make_node("Mul", ["down", "model.norm.weight"], ["norm"]),
        helper.make_node("Transpose", ["lm_head.weight"], ["head_t"], perm=[1, 0]),
        helper.make_node("MatMul", ["norm", "head_t"], ["logits"]),
    ]
    return session_models.model(
        nodes,
        [("input_ids", "int64", [1, 8]), *((name, elem_type, shape) for name, shape in shapes.items())],
        [("logits", elem_type, [1, 8, VOCABULARY])],
    )


def logits(weights, ids):
    """Return the result of the model in float32."""
    table, up, down, norm = (array.astype(np.float32) for array in weights.values())
    return np.maximum(table[ids] @ up.T, 0) @ down.T * norm @ table.T


def spec(files, places, model_id="", **changes):
    """Return the metadata; `places` is input -> (position or path of a file, key)."""
    return {
        "files": [{"format": "safetensors", "path": path} for path in files],
        "inputs": [
            {"location": {"file": file, "key": key}, "name": name} for name, (file, key) in places.items()
        ],
        "model_id": str(model_id),
        "model_name": "LlamaForCausalLM",
        "version": 5,
    } | changes


def places(weights, shards=1):
    """Return the places of the inputs; the head and the embedding share one."""
    found = {name: (index % shards, name) for index, name in enumerate(weights)}
    return found | {"lm_head.weight": found["model.embed_tokens.weight"]}


def embed(model, document):
    """Write a description to the metadata, as the exporter does."""
    text = document if isinstance(document, str) else json.dumps(document, separators=(",", ":"))
    model.metadata_props.add(key=KEY, value=text)
    return model


def export(folder, weights=None, dtype="float32", shards=1, **changes):
    """Write a model and its checkpoint; return the path of the model.

    The checkpoint is in another folder, to which a link next to the model points.
    """
    weights = arrays() if weights is None else weights
    prepared = folder / "checkpoints" / f"tiny-qeff-prepared-{dtype}"
    files = [f"{prepared.name}/model_{index:04d}.safetensors" for index in range(shards)]
    for index, file in enumerate(files):
        part = {name: array for place, (name, array) in enumerate(weights.items()) if place % shards == index}
        safetensors_files.write(prepared.parent / file, part, {"format": "pt"})
    made = folder / "export"
    made.mkdir(exist_ok=True)
    link = made / prepared.name
    if not link.is_symlink():
        link.symlink_to(prepared)
    document = spec(files, places(weights, shards), prepared) | changes
    return session_models.save(made, embed(graph(dtype), document), "LlamaForCausalLM.onnx")
