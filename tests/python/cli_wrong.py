# SPDX-License-Identifier: Apache-2.0
"""Wrong calls and wrong content, one line each: what to run, the exit code, and a part of the message.

A case makes its files in the folder it is given and returns the arguments. `{out}` stands for the output.
"""

import json
import os
from dataclasses import dataclass, field

import numpy as np
from cli_files import problem, raw, shape_entry, write


@dataclass
class Wrong:
    arguments: str | list
    message: str
    code: int = 2
    change: object = lambda tensors: None  # of the problem in.safetensors
    make: object = lambda folder: None     # further files
    env: dict = field(default_factory=dict)
    dtype: str = "f32"


ATTEND = "attend in.safetensors -o out.safetensors "
GRAD = "grad in.safetensors -o out.safetensors "
JVP = "jvp in.safetensors -o out.safetensors "
SECOND = "second in.safetensors -o out.safetensors "
PROBE = "probe in.safetensors -o out.safetensors "


def setting(**arrays):
    """A change that adds or replaces tensors; None takes one away."""

    def change(tensors):
        for name, array in arrays.items():
            if array is None:
                tensors.pop(name, None)
            else:
                tensors[name] = np.asarray(array)

    return change


def call(arguments, message, change=lambda tensors: None, **more):
    return Wrong(arguments, message, change=change, **more)


WORDS = {
    "no_verb": call("", "no verb given"),
    "unknown_verb": call("atend in.safetensors -o out.safetensors", "'atend' is not a verb"),
    "option_before_verb": call("--json attend in.safetensors -o out.safetensors", "'--json' is not a verb"),
    "no_output": call("attend in.safetensors", "--output is required"),
    "no_problem": call("attend -o out.safetensors", "no problem given"),
    "two_problems": call(ATTEND + "in.safetensors", "unexpected argument 'in.safetensors'"),
    "unknown_option": call(ATTEND + "--scael 1", "unexpected argument '--scael'"),
    "output_without_path": call("attend in.safetensors -o", "--output: expected a value"),
    "empty_output": call(["attend", "in.safetensors", "-o", ""], "expected a path"),
    "option_twice": call(ATTEND + "--scale 1 --scale 2", "--scale: expected one value, got several"),
    "switch_with_value": call(ATTEND + "--json=yes", "json"),
    "d_out_for_attend": call(ATTEND + "--d_out q.npy", "unexpected argument '--d_out'"),
    "t_q_for_grad": call(GRAD + "--t_q q.npy", "unexpected argument '--t_q'"),
    "tile_for_attend": call(ATTEND + "--tile 0:1,0:1", "unexpected argument '--tile'"),
    "weights_for_grad": call(GRAD + "--weights", "unexpected argument '--weights'"),
    "scale_without_value": call(ATTEND + "--scale", "--scale: expected a value, got nothing"),
    "scale_nan": call(ATTEND + "--scale nan", "--scale: expected a finite number, got 'nan'"),
    "scale_inf": call(ATTEND + "--scale inf", "--scale: expected a finite number, got 'inf'"),
    "scale_trailing": call(ATTEND + "--scale 1x", "--scale: expected a finite number, got '1x'"),
    "scale_overflow": call(ATTEND + "--scale 1e999", "--scale: expected a finite number, got '1e999'"),
    "scale_empty": call(["attend", "in.safetensors", "-o", "out.safetensors", "--scale", ""], "--scale: expected a finite"),
    "scale_blank": call(["attend", "in.safetensors", "-o", "out.safetensors", "--scale", " 1"], "got ' 1'"),
    "softcap_negative": call(ATTEND + "--softcap -1", "softcap"),
    "softcap_nan": call(ATTEND + "--softcap nan", "--softcap: expected a finite number"),
    "dropout_1": call(ATTEND + "--dropout 1 --seed 1", "--dropout: expected a number in [0, 1), got '1'"),
    "dropout_negative": call(ATTEND + "--dropout -0.1 --seed 1", "--dropout: expected a number in [0, 1)"),
    "dropout_without_seed": call(ATTEND + "--dropout 0.1", "--dropout needs --seed"),
    "seed_without_dropout": call(ATTEND + "--seed 1", "--seed needs --dropout"),
    "seed_negative": call(ATTEND + "--dropout 0.1 --seed -1", "--seed: expected an integer from 0 to 2^64 - 1"),
    "seed_too_large": call(ATTEND + "--dropout 0.1 --seed 18446744073709551616", "--seed: expected an integer"),
    "seed_fraction": call(ATTEND + "--dropout 0.1 --seed 1.5", "--seed: expected an integer"),
    "causal_alone": call(ATTEND + "--causal", "top_left, bottom_right, an integer offset, or offsets, got nothing"),
    "causal_word": call(ATTEND + "--causal left", "top_left, bottom_right, an integer offset, or offsets, got 'left'"),
    "causal_eats_input": call("attend --causal in.safetensors -o out.safetensors", "--causal: expected top_left"),
    "causal_fraction": call(ATTEND + "--causal 1.5", "--causal: expected top_left"),
    "causal_overflow": call(ATTEND + "--causal 9223372036854775808", "--causal: expected top_left"),
    "causal_beyond_positions": call(ATTEND + "--causal 9223372036854775807", "offset"),
    "causal_offsets_without_tensor": call(ATTEND + "--causal offsets", "--causal needs the tensor offsets"),
    "causal_with_offset": call(ATTEND + "--causal 1 --offset 1", "--causal and --offset exclude each other"),
    "offset_overflow": call(ATTEND + "--offset 9223372036854775808", "--offset: expected an integer"),
    "offset_beyond_positions": call(ATTEND + "--window 1,1 --offset -9223372036854775808", "offset"),
    "window_one_side": call(ATTEND + "--window 3", "--window: expected L,R"),
    "window_three_sides": call(ATTEND + "--window 1,2,3", "--window: expected L,R"),
    "window_negative": call(ATTEND + "--window=-1,2", "--window: expected L,R"),
    "window_word": call(ATTEND + "--window a,b", "--window: expected L,R"),
    "window_empty_side": call(ATTEND + "--window 1,", "--window: expected L,R"),
    "block_without_mask": call(ATTEND + "--block 2,2", "--block needs the tensor block_mask"),
    "block_zero": call(ATTEND + "--block 0,2", "--block: expected bq,bk"),
    "block_one_side": call(ATTEND + "--block 2", "--block: expected bq,bk"),
    "buckets_without_table": call(ATTEND + "--buckets causal", "--buckets needs the tensor table"),
    "buckets_word": call(ATTEND + "--buckets both", "--buckets: expected bidirectional or causal"),
    "max_distance_without_table": call(ATTEND + "--max-distance 8", "--max-distance needs the tensor table"),
    "max_distance_zero": call(ATTEND + "--max-distance 0", "--max-distance: expected an integer of at least 1"),
    "threads_0": call(ATTEND + "--threads 0", "--threads: expected an integer from 1 to 4096, got '0'"),
    "threads_4097": call(ATTEND + "--threads 4097", "--threads: expected an integer from 1 to 4096"),
    "threads_negative": call(ATTEND + "--threads -1", "--threads: expected an integer from 1 to 4096"),
    "threads_wrapped": call(ATTEND + "--threads 4294967297", "--threads: expected an integer from 1 to 4096"),
    "threads_trailing": call(ATTEND + "--threads 2x", "--threads: expected an integer from 1 to 4096"),
    "target_unknown": call(ATTEND + "--target PDP11", "PDP11"),
    "target_empty": call(["info", "--target", ""], "target"),
    "target_of_environment": call(ATTEND, "PDP11", env={"QKV_TARGET": "PDP11"}),
    "target_of_environment_info": call("info", "PDP11", env={"QKV_TARGET": "PDP11"}),
    "dtype_unknown": call(ATTEND + "--dtype f8", "--dtype: expected f64, f32, bf16 or f16, got 'f8'"),
    "tile_short": call(PROBE + "--tile 0:4", "--tile: expected q0:q1,k0:k1"),
    "tile_reversed": call(PROBE + "--tile 3:1,0:1", "--tile: expected q0:q1,k0:k1"),
    "tile_beyond_queries": call(PROBE + "--tile 0:6,0:7", "--tile: expected queries within 0:5, got 0:6"),
    "tile_beyond_keys": call(PROBE + "--tile 0:5,0:8", "--tile: expected keys within 0:7, got 0:8"),
    "edges_short": call(PROBE + "--edges 1", "--edges: expected i:K"),
    "edges_negative": call(PROBE + "--edges -1:2", "--edges: expected i:K"),
    "edges_beyond": call(PROBE + "--edges 5:1", "5"),
    "edges_too_many": call(PROBE + "--edges 0:9223372036854775807", "does not fit 64 bits"),
    "shell": call("completion fish", "expected bash or zsh, got 'fish'"),
    "shell_missing": call("completion", "SHELL is required"),
}


# ---- Where the output goes

def link(kind):
    def make(folder):
        {"hard": os.link, "symbolic": os.symlink}[kind](folder / "in.safetensors", folder / "out.safetensors")

    return make


def arrays(folder):
    np.save(folder / "q.npy", np.zeros((5, 8), np.float32))
    np.save(folder / "k.npy", np.zeros((7, 8), np.float32))
    (folder / "results").mkdir()
    np.save(folder / "results" / "out.npy", np.zeros((7, 6), np.float32))  # the values, as it happens


def folders(*names):
    def make(folder):
        for name in names:
            (folder / name).mkdir(parents=True)

    return make


OUTPUTS = {
    "output_is_input": Wrong("attend in.safetensors -o in.safetensors", "is the input in.safetensors"),
    "output_is_input_by_another_path": Wrong("attend in.safetensors -o ./here/../in.safetensors", "is the input",
                                             make=folders("here")),
    "output_is_hard_link": Wrong(ATTEND, "is the input in.safetensors", make=link("hard")),
    "output_is_symbolic_link": Wrong(ATTEND, "is the input in.safetensors", make=link("symbolic")),
    "output_folder_holds_input": Wrong("attend --q q.npy --k k.npy --v results/out.npy -o results", "is the input",
                                       make=arrays),
    "output_file_is_folder": Wrong("attend in.safetensors -o folder.safetensors", "folder.safetensors",
                                   make=folders("folder.safetensors")),
    "output_folder_is_file": Wrong("attend in.safetensors -o in.safetensors/", "in.safetensors"),
    "output_folder_holds_folder": Wrong("attend in.safetensors -o results", "a folder stands where a file goes",
                                        make=folders("results/out.npy")),
    "no_such_folder": Wrong("attend in.safetensors -o nowhere/out.safetensors", "nowhere", code=1),
    "no_such_folder_for_folder": Wrong("attend in.safetensors -o nowhere/results", "nowhere", code=1),
    "parent_is_file": Wrong("attend in.safetensors -o in.safetensors/out.npy", "not a folder"),
    "npy_with_weights": Wrong("attend in.safetensors --weights -o out.npy", "a .npy file holds one array, not weights"),
    "npy_for_grad": Wrong("grad in.safetensors -o out.npy", "a .npy file holds one array"),
    "npy_for_probe": Wrong("probe in.safetensors -o out.npy", "a .npy file holds one array"),
    "npy_bf16": Wrong("attend in.safetensors --dtype bf16 -o out.npy", "out is bf16"),
    "folder_bf16": Wrong("grad in.safetensors -o results", "is bf16", dtype="bf16"),
}


# ---- What files hold

def file(name, content):
    def make(folder):
        (folder / name).write_bytes(content)

    return make


def header(entries, body=b"\0" * 64):
    return lambda folder: raw(folder / "bad.safetensors", entries, body)


def npy(header_text, body=b"\0" * 1024, version=(1, 0)):
    text = header_text.encode() + b"\n"
    return file("bad.npy", b"\x93NUMPY" + bytes(version) + len(text).to_bytes(2, "little") + text + body)


BAD = "attend bad.safetensors -o out.safetensors"
NPY = "attend in.safetensors --mask bad.npy -o out.safetensors"
DESCR = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }"
FILES = {
    "file_missing": Wrong("attend nowhere.safetensors -o out.safetensors", "nowhere.safetensors", code=1),
    "file_is_folder": Wrong("attend folder -o out.safetensors", "folder", code=1, make=folders("folder")),
    "npy_missing": Wrong(ATTEND + "--mask nowhere.npy", "nowhere.npy", code=1),
    "file_is_npy": Wrong("attend bad.npy -o out.safetensors", "give .npy files as --q", make=file("bad.npy", b"")),
    "file_empty": Wrong(BAD, "bad.safetensors", make=file("bad.safetensors", b"")),
    "file_short": Wrong(BAD, "bad.safetensors", make=file("bad.safetensors", b"\1\2\3")),
    "header_beyond_file": Wrong(BAD, "bad.safetensors", make=file("bad.safetensors", b"\xff" * 7 + b"\x7f{}")),
    "header_no_json": Wrong(BAD, "bad.safetensors", make=header(b"{'q': 1}")),
    "header_array": Wrong(BAD, "bad.safetensors", make=header(b"[]")),
    "header_nested": Wrong(BAD, "bad.safetensors", make=header(b'{"q":' + b"[" * 100000 + b"]" * 100000 + b"}")),
    "duplicate_names": Wrong(BAD, "q", make=header(
        ('{"q":%s,"q":%s}' % ((json.dumps(shape_entry("F32", [4, 4], 0, 64)),) * 2)).encode())),
    "tensors_overlap": Wrong(BAD, "bad.safetensors", make=header(
        {"q": shape_entry("F32", [2, 4], 0, 32), "k": shape_entry("F32", [2, 4], 16, 48)}, b"\0" * 48)),
    "tensors_with_hole": Wrong(BAD, "bad.safetensors", make=header(
        {"q": shape_entry("F32", [2, 4], 0, 32), "k": shape_entry("F32", [2, 4], 48, 80)}, b"\0" * 80)),
    "offsets_reversed": Wrong(BAD, "q", make=header({"q": shape_entry("F32", [4, 4], 64, 0)})),
    "bytes_after_the_end": Wrong(BAD, "bad.safetensors", make=header({"q": shape_entry("F32", [2, 4], 0, 32)})),
    "wrong_byte_count": Wrong(BAD, "q", make=header({"q": shape_entry("F32", [4, 5], 0, 64)})),
    "shape_overflows": Wrong(BAD, "q", make=header({"q": shape_entry("F32", [2**40, 2**40], 0, 64)})),
    "shape_negative": Wrong(BAD, "q", make=header({"q": shape_entry("F32", [-4, -4], 0, 64)})),
    "dtype_of_file_unknown": Wrong(BAD, "F8_E4M3", make=header({"q": shape_entry("F8_E4M3", [64], 0, 64)})),
    "npy_no_magic": Wrong(NPY, "bad.npy", make=file("bad.npy", b"not an array at all")),
    "npy_truncated": Wrong(NPY, "bad.npy", make=npy(DESCR % ("|b1", "(5, 7)"), b"\0" * 34)),
    "npy_object": Wrong(NPY, "bad.npy", make=npy(DESCR % ("|O", "(5, 7)"))),
    "npy_structured": Wrong(NPY, "bad.npy", make=npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (5, 7), }")),
    "npy_string": Wrong(NPY, "bad.npy", make=npy(DESCR % ("<U4", "(5, 7)"))),
    "npy_i8": Wrong(NPY, "bad.npy", make=npy(DESCR % ("|i1", "(5, 7)"))),
    "npy_expression": Wrong(NPY, "bad.npy", make=npy(DESCR % ("|b1", "(5, __import__('os').getpid())"))),
    "npy_negative": Wrong(NPY, "bad.npy", make=npy(DESCR % ("|b1", "(-5, -7)"))),
    "npy_overflows": Wrong(NPY, "bad.npy", make=npy(DESCR % ("|b1", "(4294967296, 4294967296, 4294967296)"))),
    "npy_version": Wrong(NPY, "bad.npy", make=npy(DESCR % ("|b1", "(5, 7)"), version=(9, 0))),
}


# ---- What tensors hold

def zeros(*dims, dtype=np.float32):
    return np.zeros(dims, dtype)


def integers(*values):
    return np.array(values, np.int64)


PACKED = {"q": zeros(8, 4, 8), "k": zeros(9, 2, 8), "v": zeros(9, 2, 6), "d_out": zeros(8, 4, 6),
          "query_starts": integers(0, 3, 8), "key_starts": integers(0, 4, 9)}


def packed(**more):
    return setting(**{**PACKED, **more})


TENSORS = {
    "unknown_tensor": call(ATTEND, "unknown tensor 'queries'", setting(queries=zeros(2))),
    "name_with_newline": call(ATTEND, "unknown tensor 'a\\nb'", setting(**{"a\nb": zeros(2)})),
    "tensor_twice": call(ATTEND + "--q q.npy", "the tensor q is in in.safetensors already",
                         make=lambda folder: np.save(folder / "q.npy", zeros(2))),
    "no_q": call(ATTEND, "in.safetensors: expected a tensor named q", setting(q=None)),
    "no_k": call(ATTEND, "in.safetensors: expected a tensor named k", setting(k=None)),
    "no_v": call(ATTEND, "in.safetensors: expected a tensor named v", setting(v=None)),
    "no_v_option": call("attend --q q.npy --k q.npy -o out.npy", "--v: expected a tensor named v",
                        make=lambda folder: np.save(folder / "q.npy", zeros(2, 2))),
    "no_d_out": call(GRAD, "in.safetensors: expected a tensor named d_out", setting(d_out=None)),
    "q_rank_1": call(ATTEND, "q: expected 2, 3 or 4 axes, got [8]", setting(q=zeros(8))),
    "q_rank_5": call(ATTEND, "q: expected 2, 3 or 4 axes", setting(q=zeros(1, 2, 4, 5, 8))),
    "q_rank_0": call(ATTEND, "q: expected 2, 3 or 4 axes", setting(q=zeros())),
    "k_rank": call(ATTEND, "k: expected as many axes as q", setting(k=zeros(2, 7, 8))),
    "q_integers": call(ATTEND, "q: expected f64, f32, bf16 or f16, got i64", setting(q=zeros(2, 4, 5, 8, dtype=np.int64))),
    "q_integers_with_dtype": call(ATTEND + "--dtype f32", "q: expected f64, f32, bf16 or f16, got i32",
                                  setting(q=zeros(2, 4, 5, 8, dtype=np.int32))),
    "dtypes_differ": call(ATTEND, "v is f16, q is f32", setting(v=zeros(2, 2, 7, 6, dtype=np.float16))),
    "keys_differ": call(ATTEND, "v has 6 keys, k has 7", setting(v=zeros(2, 2, 6, 6))),
    "widths_differ": call(ATTEND, "k has width 9, q has 8", setting(k=zeros(2, 2, 7, 9))),
    "batches_differ": call(ATTEND, "k has batch 3, q has 2", setting(k=zeros(3, 2, 7, 8))),
    "heads_differ": call(ATTEND, "v has 4 heads, k has 2", setting(v=zeros(2, 4, 7, 6))),
    "heads_no_multiple": call(ATTEND, "no multiple", setting(k=zeros(2, 3, 7, 8), v=zeros(2, 3, 7, 6))),
    "no_key_heads": call(ATTEND, "k has 0 heads", setting(k=zeros(2, 0, 7, 8), v=zeros(2, 0, 7, 6))),
    "bias_shape": call(ATTEND, "bias", setting(bias=zeros(2, 4, 5, 6))),
    "bias_rank": call(ATTEND, "bias", setting(bias=zeros(5, 7))),
    "bias_dtype": call(ATTEND, "bias", setting(bias=zeros(1, 1, 5, 7, dtype=np.float16))),
    "mask_dtype": call(ATTEND, "mask", setting(mask=zeros(1, 1, 5, 7))),
    "mask_shape": call(ATTEND, "mask", setting(mask=zeros(1, 1, 7, 5, dtype=np.uint8))),
    "slopes_shape": call(ATTEND, "slopes", setting(slopes=zeros(2))),
    "slopes_dtype": call(ATTEND, "slopes", setting(slopes=zeros(4, dtype=np.float64))),
    "sinks_shape": call(ATTEND, "sinks", setting(sinks=zeros(2, 4))),
    "sinks_integers_with_dtype": call(ATTEND + "--dtype f64", "sinks", setting(sinks=integers(0, 1, 2, 3))),
    "table_shape": call(ATTEND + "--buckets causal", "table", setting(table=zeros(8))),
    "table_alone": call(ATTEND, "table needs --buckets", setting(table=zeros(4, 8))),
    "table_odd": call(ATTEND + "--buckets bidirectional", "even", setting(table=zeros(4, 7))),
    "table_near": call(ATTEND + "--buckets causal --max-distance 4", "max_distance", setting(table=zeros(4, 8))),
    "block_mask_alone": call(ATTEND, "block_mask needs --block", setting(block_mask=zeros(1, 1, 3, 3, dtype=np.uint8))),
    "block_mask_shape": call(ATTEND + "--block 2,2", "block_mask", setting(block_mask=zeros(1, 1, 3, 3, dtype=np.uint8))),
    "lengths_negative": call(ATTEND, "key_lengths[1] is -1", setting(key_lengths=integers(1, -1))),
    "lengths_too_large": call(ATTEND, "key_lengths[0] is 8", setting(key_lengths=integers(8, 1))),
    "lengths_floating": call(ATTEND, "key_lengths", setting(key_lengths=zeros(2))),
    "query_lengths_too_large": call(ATTEND, "query_lengths[1] is 6", setting(query_lengths=integers(0, 6))),
    "query_lengths_shape": call(ATTEND, "query_lengths", setting(query_lengths=integers(1))),
    "offsets_shape": call(ATTEND + "--causal offsets", "offsets", setting(offsets=integers(1, 2, 3))),
    "offsets_with_top_left": call(ATTEND + "--causal top_left", "offsets: ", setting(offsets=integers(1, 2))),
    "offsets_with_offset": call(ATTEND + "--offset 1", "--offset and the tensor offsets", setting(offsets=integers(1, 2))),
    "segment_of_queries_alone": call(ATTEND, "query_segment needs the tensor key_segment",
                                     setting(query_segment=zeros(2, 5, dtype=np.int64))),
    "segment_of_keys_alone": call(ATTEND, "key_segment needs the tensor query_segment",
                                  setting(key_segment=zeros(2, 7, dtype=np.int64))),
    "segment_shape": call(ATTEND, "key_segment", setting(query_segment=zeros(2, 5, dtype=np.int64),
                                                         key_segment=zeros(2, 5, dtype=np.int64))),
    "starts_of_queries_alone": call(ATTEND, "query_starts needs the tensor key_starts", packed(key_starts=None)),
    "starts_of_keys_alone": call(ATTEND, "key_starts needs the tensor query_starts", packed(query_starts=None)),
    "starts_fall": call(ATTEND, "query_starts must not fall", packed(query_starts=integers(0, 9, 8))),
    "starts_end_early": call(ATTEND, "key_starts ends at 8", packed(key_starts=integers(0, 4, 8))),
    "starts_begin_late": call(ATTEND, "key_starts must begin at 0", packed(key_starts=integers(1, 4, 9))),
    "starts_count": call(ATTEND, "key_starts", packed(key_starts=integers(0, 9))),
    "starts_rank": call(ATTEND, "q: expected [total_q, H, D]", setting(query_starts=integers(0, 1), key_starts=integers(0, 1))),
    "packed_with_mask": call(ATTEND, "mask", packed(mask=zeros(1, 8, 9, dtype=np.uint8))),
    "packed_with_weights": call(ATTEND + "--weights", "--weights and query_starts exclude", packed()),
    "packed_with_tile": call(PROBE + "--tile 0:1,0:1", "--tile and query_starts exclude", packed()),
    "d_out_shape": call(GRAD, "d_out", setting(d_out=zeros(2, 4, 5, 8))),
    "d_out_dtype": call(GRAD, "d_out", setting(d_out=zeros(2, 4, 5, 6, dtype=np.float64))),
    "t_q_shape": call(JVP, "t_q must be [2, 4, 5, 8], got [2, 4, 5, 6]", setting(t_q=zeros(2, 4, 5, 6))),
    "t_k_dtype": call(JVP, "t_k must be f32, got f64", setting(t_k=zeros(2, 2, 7, 8, dtype=np.float64))),
    "t_bias_alone": call(JVP, "t_bias came without bias", setting(t_bias=zeros(1, 1, 5, 7))),
    "t_table_alone": call(JVP, "t_table came without table", setting(t_table=zeros(4, 8))),
    "t_scale_shape": call(JVP, "t_scale must be [1]", setting(t_scale=zeros(2))),
    "no_d_out_for_second": call(SECOND, "in.safetensors: expected a tensor named d_out", setting(d_out=None)),
    "c_v_shape": call(SECOND, "c_v must be [2, 2, 7, 6], got [2, 2, 7, 8]", setting(c_v=zeros(2, 2, 7, 8))),
    "c_bias_alone": call(SECOND, "c_bias came without bias", setting(c_bias=zeros(1, 1, 5, 7))),
    "d_lse_shape": call(GRAD, "d_lse", setting(d_lse=zeros(2, 4, 7))),
    "out_too_large": call(ATTEND, "memory", setting(q=zeros(1, 1, 2**40, 0), k=zeros(1, 1, 0, 0), v=zeros(1, 1, 0, 2**18)), code=1),
    "out_overflows": call(ATTEND, "64 bits", setting(q=zeros(1, 1, 2**40, 0), k=zeros(1, 1, 0, 0), v=zeros(1, 1, 0, 2**40))),
}

CASES = {**WORDS, **OUTPUTS, **FILES, **TENSORS}


def prepare(case, folder):
    """The files of a case; returns its arguments."""
    tensors = problem(dtype=case.dtype)
    case.change(tensors)
    write(folder / "in.safetensors", tensors)
    case.make(folder)
    return case.arguments.split() if isinstance(case.arguments, str) else case.arguments
