# SPDX-License-Identifier: Apache-2.0
"""Outputs arrive whole or not at all: replaced files and folders, full disks, limits, kills."""

import os
import resource
import signal
import stat
import subprocess

import numpy as np
import pytest
from cli_files import listing, problem, raw, read, read_folder, shape_entry, write


@pytest.fixture
def files(tmp_path):
    write(tmp_path / "in.safetensors", problem())
    return tmp_path


def test_nothing_but_the_output_appears(qkv, files):
    for output in ("out.safetensors", "out.npy", "results", "results"):
        before = set(listing(files))
        qkv("attend", "in.safetensors", "-o", output)
        assert {name.split("/")[0] for name in set(listing(files)) - before} <= {output}


@pytest.mark.parametrize("output", ["out.safetensors", "out.npy"])
def test_a_file_is_replaced_whole_and_keeps_its_mode(qkv, files, output):
    qkv("attend", "in.safetensors", "-o", output)
    fresh = (files / output).read_bytes()
    (files / output).write_bytes(b"longer than what comes" * 10000)
    (files / output).chmod(0o640)
    qkv("attend", "in.safetensors", "-o", output)
    assert (files / output).read_bytes() == fresh
    assert stat.S_IMODE((files / output).stat().st_mode) == 0o640


def test_a_symbolic_link_keeps_pointing(qkv, files):
    (files / "elsewhere").mkdir()
    (files / "elsewhere" / "real.safetensors").write_bytes(b"old")
    (files / "out.safetensors").symlink_to("elsewhere/real.safetensors")
    qkv("attend", "in.safetensors", "-o", "out.safetensors")
    assert (files / "out.safetensors").is_symlink()
    assert set(read(files / "elsewhere" / "real.safetensors")) == {"out", "lse"}


def test_a_folder_keeps_its_other_files(qkv, files):
    (files / "results").mkdir()
    (files / "results" / "notes.txt").write_text("mine")
    (files / "results" / "out.npy").write_bytes(b"old")
    qkv("attend", "in.safetensors", "-o", "results/")
    assert sorted(path.name for path in (files / "results").iterdir()) == ["lse.npy", "notes.txt", "out.npy"]
    assert (files / "results" / "notes.txt").read_text() == "mine"
    assert np.load(files / "results" / "out.npy").shape == (2, 4, 5, 6)


def test_a_new_folder_has_the_usual_mode(qkv, files):
    qkv("attend", "in.safetensors", "-o", "results", umask=0o027)
    assert stat.S_IMODE((files / "results").stat().st_mode) == 0o750


def refused(done, message):
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("qkv: error: ") and done.stderr.count("\n") == 1 and message in done.stderr


def test_device_that_is_full(qkv, files):
    (files / "full.safetensors").symlink_to("/dev/full")
    refused(qkv("attend", "in.safetensors", "-o", "full.safetensors", check=False), "No space left on device")
    assert os.readlink(files / "full.safetensors") == "/dev/full"


def test_standard_output_that_is_full(program, files):
    with open("/dev/full", "w") as full:
        done = subprocess.run([program, "info", "--json"], stdout=full, stderr=subprocess.PIPE, text=True)
    refused(done, "standard output")


@pytest.mark.parametrize("output", ["out.safetensors", "out.npy", "folder"])
def test_what_cannot_be_said_leaves_no_output(program, files, output):
    before = listing(files)
    read_end, write_end = os.pipe()
    os.close(read_end)  # a reader that has left
    for target in (os.open("/dev/full", os.O_WRONLY), write_end):
        done = subprocess.run([program, "attend", "in.safetensors", "-o", output], cwd=files, stdout=target,
                              stderr=subprocess.PIPE, text=True)
        os.close(target)
        refused(done, "standard output")
        assert listing(files) == before



@pytest.mark.parametrize("output", ["out.safetensors", "out.npy", "old", "new"])
def test_disk_that_is_full(qkv, files, output):
    """A limit on the size of files stops the write in the middle, as a full disk does; no signal may end the program."""
    write(files / "in.safetensors", problem(Tq=200, Dv=64))
    (files / "old").mkdir()
    for old in ("out.safetensors", "out.npy", "old/out.npy", "old/lse.npy"):
        (files / old).write_bytes(b"what was here before")
    before = listing(files)
    done = qkv("attend", "in.safetensors", "-o", output, check=False,
               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)))
    refused(done, "cannot be written")
    assert listing(files) == before


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a file system")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("output", ["out.safetensors", "out.npy", "results"])
def test_small_disk(qkv, tmp_path, small_disk, output):
    write(tmp_path / "in.safetensors", problem(Tq=200, Dv=64))
    (small_disk / "out.safetensors").write_bytes(b"what was here before")
    before = listing(small_disk)
    refused(qkv("attend", "in.safetensors", "-o", f"disk/{output}", check=False), "No space left on device")
    assert listing(small_disk) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission(qkv, files):
    (files / "closed").mkdir(mode=0o500)
    refused(qkv("attend", "in.safetensors", "-o", "closed/out.safetensors", check=False), "Permission denied")
    refused(qkv("attend", "in.safetensors", "-o", "closed/results", check=False), "Permission denied")
    (files / "in.safetensors").chmod(0)
    refused(qkv("attend", "in.safetensors", "-o", "out.safetensors", check=False), "Permission denied")


@pytest.mark.parametrize("output", ["out.safetensors", "results"])
def test_killed_while_it_writes(program, qkv, files, output):
    """Some 35 MB of weights, and a kill as soon as the first of them are on the disk: the old content or the new."""
    qkv("attend", "in.safetensors", "--weights", "-o", output)
    content = listing(files / output) if output == "results" else (files / output).read_bytes()
    write(files / "large.safetensors", problem(B=1, H=8, Tq=1024, Tk=1024, D=2, Dv=2))
    where = files / output if output == "results" else files
    process = subprocess.Popen([program, "attend", "large.safetensors", "--weights", "-o", output], cwd=files,
                               stdout=subprocess.DEVNULL)
    while process.poll() is None and not any(name.startswith(".qkv-") for name in os.listdir(where)):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    if output == "results":
        arrays = {path.name: path.read_bytes() for path in (files / output).iterdir() if path.suffix == ".npy"}
        assert set(arrays) == set(content)
        for name, array in read_folder(files / output).items():
            assert arrays[f"{name}.npy"] == content[f"{name}.npy"] or array.shape[2] == 1024
    else:
        assert (files / output).read_bytes() == content or read(files / output)["weights"].shape == (1, 8, 1024, 1024)


def test_a_large_file_is_not_read_where_it_is_not_needed(program, tmp_path):
    """10 GB of d_out, which attend has no use for, in a file without blocks: mapped, not read."""
    tensors = {name: array for name, array in problem(B=1, H=1, Hkv=1).items() if name != "d_out"}
    large = 10 * 10**9
    entries, body = {}, b""
    for name, array in tensors.items():
        entries[name] = shape_entry("F32", array.shape, len(body), len(body) + array.nbytes)
        body += array.tobytes()
    entries["d_out"] = shape_entry("F32", [large // 4], len(body), len(body) + large)
    path = raw(tmp_path / "in.safetensors", entries, body)
    os.truncate(path, path.stat().st_size + large)
    process = subprocess.Popen([program, "attend", "in.safetensors", "-o", "out.safetensors"], cwd=tmp_path,
                               stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    assert usage.ru_maxrss < 256 * 1024, "kilobytes"


def test_an_input_that_shrinks_while_it_is_read(program, tmp_path):
    """Its bytes are gone: the program says so, instead of dying of a signal."""
    tensors = problem(B=1, H=8, Hkv=8, Tq=2048, Tk=2048, D=64, Dv=64)
    path = write(tmp_path / "in.safetensors", tensors)
    process = subprocess.Popen([program, "grad", "in.safetensors", "--threads", "1", "-o", "out.safetensors"],
                               cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    maps = f"/proc/{process.pid}/maps"
    while process.poll() is None and str(path) not in open(maps).read():
        pass
    process.send_signal(signal.SIGSTOP)  # some 100 ms of work lie ahead, all of it on the mapped bytes
    os.truncate(path, 4096)
    process.send_signal(signal.SIGCONT)
    stderr = process.communicate()[1]
    assert process.returncode == 1
    assert stderr == "qkv: error: an input file became shorter while it was being read\n"
    assert not (tmp_path / "out.safetensors").exists()
