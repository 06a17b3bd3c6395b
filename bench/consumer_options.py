"""The option structs of softfold.h's cross_entropy, linear_cross_entropy, entropy, kl_divergence, topk, sample and shards for
ctypes: for both machines."""
import ctypes as C


class CrossEntropyOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("rows", C.c_void_p), ("ignore_index", C.c_int64),
                ("label_smoothing", C.c_double), ("z_loss", C.c_double), ("weight", C.c_void_p),
                ("log_probability", C.c_void_p), ("states", C.c_void_p), ("dx", C.c_void_p), ("dloss", C.c_void_p),
                ("reduction", C.c_int32), ("status", C.c_void_p), ("shard_offset", C.c_int64),
                ("shard_size", C.c_int64)]


class LinearCrossEntropyOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("loss", C.c_void_p), ("bias", C.c_void_p), ("dx", C.c_void_p),
                ("dweight", C.c_void_p), ("dbias", C.c_void_p), ("softcap", C.c_double), ("mode", C.c_int32)]


class EntropyOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("rows", C.c_void_p), ("states", C.c_void_p), ("dx", C.c_void_p),
                ("dentropy", C.c_void_p)]


class KlDivergenceOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("rows", C.c_void_p), ("p_states", C.c_void_p), ("q_states", C.c_void_p),
                ("dp", C.c_void_p), ("dq", C.c_void_p), ("dkl", C.c_void_p)]


class TopkOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("rows", C.c_void_p), ("probabilities", C.c_void_p),
                ("log_probabilities", C.c_void_p), ("lse", C.c_void_p), ("sorted", C.c_int32)]


class SampleOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("rows", C.c_void_p), ("temperature", C.c_double), ("top_k", C.c_int64),
                ("top_p", C.c_double), ("min_p", C.c_double), ("seed", C.c_uint64), ("offset", C.c_uint64),
                *((name, C.c_void_p) for name in ("temperatures", "top_ks", "top_ps", "min_ps", "bias", "bitmask",
                                                  "seeds", "offsets", "row_ids", "log_probability", "rank",
                                                  "probabilities", "masked")),
                ("order", C.c_int32), ("of", C.c_int32), ("top_tokens", C.c_void_p),
                ("top_log_probabilities", C.c_void_p)]


class ShardOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("rows", C.c_void_p), ("targets", C.c_void_p), ("offset", C.c_int64),
                ("size", C.c_int64), ("k", C.c_int64)]
