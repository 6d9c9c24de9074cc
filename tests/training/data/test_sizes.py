"""Sizes that a data set claims are checked before memory is taken for them."""

from __future__ import annotations

import io
import json
import os
import struct
import tarfile
import zlib

import pytest
import torch
from harness.pictures import make_folder, make_shard
from PIL import Image

from kfp_pytorch.training.arguments import config
from kfp_pytorch.training.data import decode, image_folder, tar_index, webdataset
from kfp_pytorch.training.data.augment import centre_view
from kfp_pytorch.training.data.sources import MOST_IMAGE_BYTES, Files
from kfp_pytorch.training.errors import ConfigError, DataError
from kfp_pytorch.training.language import text
from kfp_pytorch.training.parallel.process_group import ALONE

HUGE = MOST_IMAGE_BYTES + 1


def grow(path, size):
    """Makes a file that large, of which the disk holds nothing."""
    os.truncate(path, size)


def decoded(content):
    """The reason why an image cannot be decoded, or none."""
    views = lambda _place, height, width: centre_view(height, width)  # noqa: E731
    return decode.on_cpu([decode.as_tensor(content)], views, 8).failures


def png(width, height):
    """A PNG whose header claims a size, with no pixels behind it."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def jpeg(width, height):
    """A JPEG whose header claims another size than it was made of."""
    content = io.BytesIO()
    Image.new("RGB", (8, 8)).save(content, "JPEG")
    before, marker, after = content.getvalue().partition(b"\xff\xc0")
    return before + marker + after[:3] + struct.pack(">HH", height, width) + after[7:]


def animation(frames, side):
    content = io.BytesIO()
    pictures = [Image.new("RGB", (side, side), (40 * n,) * 3) for n in range(frames)]
    pictures[0].save(content, "GIF", save_all=True, append_images=pictures[1:])
    return content.getvalue()


@pytest.mark.parametrize("content", [png(60_000, 60_000), jpeg(60_000, 60_000)])
def test_an_image_that_claims_more_pixels_than_there_is_memory_for_is_not_decoded(content):
    ((_, reason),) = decoded(content)
    assert "3600000000 pixels" in reason


def test_damaged_pngs_are_named_and_end_no_process():
    content = io.BytesIO()
    Image.effect_noise((40, 40), 50).save(content, "PNG")
    for place in range(60, len(content.getvalue()) - 12, 20):
        damaged = bytearray(content.getvalue())
        damaged[place] ^= 0xFF
        assert len(decoded(bytes(damaged))) == 1
    # Too few pixels, but no damage that the sums of a PNG show.
    for _ in range(20):
        assert len(decoded(png(200, 200))) == 1


def test_all_pictures_of_an_animation_count(monkeypatch):
    content = animation(5, 10)
    assert not decoded(content)
    monkeypatch.setattr(decode, "MOST_PIXELS", 499)
    assert decoded(content) == [(0, "it has 500 pixels, and can have 499")]


def test_the_gpu_decodes_no_image_that_claims_too_many_pixels():
    assert not decode.is_whole_jpeg(decode.as_tensor(jpeg(60_000, 60_000)))
    assert decode.is_whole_jpeg(decode.as_tensor(jpeg(60, 60)))


def test_a_file_that_is_too_large_for_an_image_is_refused_when_it_is_listed(tmp_path):
    make_folder(tmp_path)
    grow(tmp_path / "train/green/003.jpg", HUGE)
    with pytest.raises(DataError, match=r"003.jpg has 268435457 bytes, .* can have 268435456"):
        image_folder.find(str(tmp_path), ALONE)


def test_an_image_in_a_shard_that_is_too_large_for_one_is_refused(tmp_path):
    with tarfile.open(tmp_path / "train-1.tar", "w") as tar:
        member = tarfile.TarInfo("001.jpg")
        member.size = HUGE
        tar.fileobj.write(member.tobuf())
        tar.offset = tarfile.BLOCKSIZE + -(-HUGE // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        tar.fileobj.truncate(tar.offset)
        tar.fileobj.seek(tar.offset)
        label = tarfile.TarInfo("001.cls")
        label.size = 1
        tar.addfile(label, io.BytesIO(b"1"))
    with pytest.raises(DataError, match="001 has 268435457 bytes, and an image can have 268435456"):
        webdataset.find(str(tmp_path), ALONE, 1)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_header_of_a_shard_that_claims_a_huge_name_is_refused(tmp_path, kind):
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = kind, 10**12
    (tmp_path / "train-1.tar").write_bytes(
        header.tobuf(tarfile.GNU_FORMAT) + bytes(4 * tarfile.BLOCKSIZE)
    )
    with pytest.raises(DataError, match="header at byte 0 claims 1000000000000 bytes"):
        webdataset.find(str(tmp_path), ALONE, 1)


def test_a_sparse_file_in_a_shard_whose_map_never_ends_names_the_shard(tmp_path):
    header = bytearray(tarfile.TarInfo("001.jpg").tobuf(tarfile.GNU_FORMAT))
    header[156:157], header[482], header[148:156] = tarfile.GNUTYPE_SPARSE, 1, b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "train-1.tar").write_bytes(header + (bytes(504) + b"\1" + bytes(7)) * 4)
    with pytest.raises(DataError, match=r"the shard .*train-1.tar cannot be used"):
        webdataset.find(str(tmp_path), ALONE, 1)


def test_an_index_is_refused_that_claims_an_image_larger_than_any(tmp_path):
    make_shard(tmp_path / "train-9.tar", [0])
    grow(tmp_path / "train-9.tar", 2 * HUGE)
    entry = {"keys": ["000"], "offsets": [0], "sizes": [HUGE], "labels": [0]}
    index = {"version": 1, "shards": [{"name": "train-9.tar", "bytes": 2 * HUGE, **entry}]}
    (tmp_path / tar_index.INDEX).write_text(json.dumps(index))
    with pytest.raises(DataError, match="000 has 268435457 bytes, and an image can have"):
        webdataset.find(str(tmp_path), ALONE, 1)


def test_an_index_larger_than_this_containers_memory_can_take_is_not_read(tmp_path, monkeypatch):
    make_shard(tmp_path / "train-9.tar", [0])
    (tmp_path / tar_index.INDEX).write_text("[" * 1001)
    monkeypatch.setattr(tar_index, "usable_memory", lambda: 40_000)
    with pytest.raises(DataError, match=r"shards.index.json has 1001 bytes, and at most 1000"):
        webdataset.find(str(tmp_path), ALONE, 1)


def test_names_of_classes_in_a_file_that_is_no_list_of_names_are_not_read(tmp_path):
    make_shard(tmp_path / "train-9.tar", [0])
    (tmp_path / "classes.txt").touch()
    grow(tmp_path / "classes.txt", HUGE)
    with pytest.raises(DataError, match=r"classes.txt has 268435457 bytes, and at most 268435456"):
        webdataset.find(str(tmp_path), ALONE, 1)


def test_neighbours_are_read_together_up_to_a_limit():
    wanted = [webdataset._Range(0, start, start + 2**27) for start in range(0, 2**30, 2**27)]
    together = webdataset._merged(wanted)
    assert {part.end - part.start for part in together} == {2**28}
    contents = [bytes(1)] * len(together)
    assert len(webdataset._cut(wanted, together, contents)) == len(wanted)


def test_text_that_does_not_fit_into_memory_is_not_read(tmp_path, monkeypatch):
    (tmp_path / "large.txt").write_bytes(b"x" * 600)
    (tmp_path / "larger.txt").write_bytes(b"x" * 600)
    paths = sorted(tmp_path.iterdir())
    assert text.ByteText.read(paths).data.shape == torch.Size([1201])
    monkeypatch.setattr(text, "usable_memory", lambda: 4000)
    with pytest.raises(ConfigError, match=r"more than 1000 bytes at .*larger.txt"):
        text.ByteText.read(paths)


def test_images_cannot_be_asked_for_at_a_size_that_takes_all_memory():
    with pytest.raises(ConfigError, match=r"--image-size is 100000; .* at most 8192"):
        config.parse(["--image-size=100000"])


def test_the_size_of_a_file_is_that_of_its_listing(tmp_path):
    (tmp_path / "index").write_bytes(b"0123456789")
    assert Files(str(tmp_path)).read_whole("index", 10, 10) == b"0123456789"
