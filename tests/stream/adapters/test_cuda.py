"""What a device does to finish images, by the same operations on the CPU. Its copies are tested in tests/gpu."""

import warnings
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import torch

import spiral_stream as sp
from spiral_stream.adapters import StreamLoader
from spiral_stream.adapters.cuda import Finisher, tensor
from spiral_stream.adapters.torch import TorchDelivery
from spiral_stream.plan.nodes import Deliver
from spiral_stream.runtime.delivery import Delivery, Devices, Feed
from spiral_stream.seeding import mix64
from spiral_stream.transforms.chain import compile_chain
from spiral_stream.transforms.image.image import compile_image
from tests.fixtures.streams import maker, plan

CPU = torch.device("cpu")
NORMALIZE = sp.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
CROPS = sp.RandomResizedCrop(32), sp.RandomHorizontalFlip()


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float16", "float32"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("compiled", [compile_image, compile_chain])
def test_images_that_a_device_finishes_have_the_bits_of_the_hosts(dtype: str, layout: str, compiled: Any) -> None:
    jitter = [sp.transforms.ColorJitter(brightness=0.4)] if compiled is compile_chain else []
    steps = [*CROPS, *jitter, *([] if dtype == "uint8" else [NORMALIZE])]
    program = compiled(steps, dtype=dtype, layout=layout)
    images = [np.random.default_rng(i).integers(0, 256, (40, 50, 3), np.uint8) for i in range(6)]
    keys = mix64(np.arange(6, dtype=np.uint64))
    rest, mean, std = program.on_device()
    pixels = np.empty((6, 32, 32, 3), np.uint8)
    rest.run(images, keys, pixels)
    whole = tensor(program.stacked(images, keys))

    finish = Finisher(mean, std, dtype, layout, CPU)
    finished = finish(torch.from_numpy(pixels))
    clips = finish(torch.from_numpy(pixels.reshape(2, 3, 32, 32, 3)))

    assert finished.dtype == whole.dtype
    assert finished.is_contiguous()
    assert torch.equal(finished, whole)
    assert torch.equal(clips, whole.reshape(2, 3, *whole.shape[1:]))


class FinishedHere(Delivery):
    """Leaves the end of images to `Finisher`, as a stream for a CUDA device does."""

    def on_host(self, fields: dict[str, Any]) -> Any:
        return {name: tensor(value) for name, value in fields.items()}

    def need(self, devices: Devices) -> None:
        assert set(devices) == {"image", "label"}

    def split(self, devices: Devices) -> frozenset[str]:
        return frozenset({"image"})

    def delivered(self, feed: Feed, devices: Devices, stages: Any) -> Generator[Any, None, None]:
        (stage,) = (each for each in stages.fields if each.ends_on_device)
        finish = Finisher(*stage.program.on_device()[1:], stage.spec.dtype, stage.program.layout, CPU)
        while (batch := feed.get()) is not None:
            assert batch.fields["image"].dtype == np.uint8
            yield self.on_host({**batch.fields, "image": finish(tensor(batch.fields["image"]))})


def test_batches_of_a_stream_are_the_same_wherever_their_images_end(catalog: sp.Catalog) -> None:
    image = sp.Stack("image_ref", decode="jpeg", transforms=(*CROPS, NORMALIZE), dtype="float16", layout="nchw")
    node: Deliver = maker(catalog, image=image)().plan
    with sp.PreparedStream(node, catalog) as host, sp.PreparedStream(node, catalog, delivery=FinishedHere()) as device:
        compared = 0
        for expected, found in zip(host, device, strict=True):
            assert torch.equal(found["image"], torch.from_numpy(expected["image"]))
            assert found["id"] == expected["id"]
            compared += 1
        assert compared == len(host) > 3
        assert torch.equal(device.batch(1, 0)["image"], torch.from_numpy(host.batch(1, 0)["image"]))


def test_an_image_with_the_channels_last_becomes_torchs_channels_last_without_a_copy(catalog: sp.Catalog) -> None:
    image = sp.Stack("image_ref", decode="jpeg", transforms=(*CROPS, NORMALIZE), dtype="float16", layout="nhwc")
    with plan(catalog.table("lance"), image=image).to_torch() as stream:
        pixels = next(iter(stream))["image"]
    turned = pixels.permute(0, 3, 1, 2)
    assert turned.shape[1] == 3
    assert turned.is_contiguous(memory_format=torch.channels_last)
    assert turned.data_ptr() == pixels.data_ptr()


def test_memory_is_made_anew_where_a_stream_is_bound_to_another_device(catalog: sp.Catalog) -> None:
    class Other(FinishedHere):
        def allocate(self, devices: Devices) -> Any:
            def own(nbytes: int) -> Any:
                made.append(devices["image"])
                return np.empty(nbytes, np.uint8)

            return own

    made: list[str | None] = []
    with sp.PreparedStream(maker(catalog)().plan, catalog, delivery=Other()) as stream:
        for device in ("cpu", "cuda"):
            made.clear()
            next(iter(stream.bind(device=device)))
            assert set(made) == {device}


@pytest.mark.timeout(300)
def test_workers_say_that_they_deliver_to_the_host_and_a_stream_loader_has_no_reason_to(
    catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with plan(catalog.table("lance"), device="cuda").to_torch() as stream:
        for worker in (0, 1):
            stream.set_epoch(0)  # a pass of its own, as each worker of a loader has
            monkeypatch.setattr(TorchDelivery, "worker", lambda _, worker=worker: (worker, 2))
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                assert next(iter(stream))["image"].device.type == "cpu"
            messages = [str(each.message) for each in told]
            assert len(messages) == (worker == 0)
            assert all("'image' asks for device 'cuda'" in each and "StreamLoader(stream" in each for each in messages)
            stream._run.threads.in_worker = False
    with plan(catalog.table("lance"), device="cuda").to_torch().bind(device="cpu") as stream:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loader = StreamLoader(stream, num_workers=0)
            assert next(iter(loader))["image"].device.type == "cpu"
        loader.close()
