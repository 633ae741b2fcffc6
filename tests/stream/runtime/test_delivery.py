"""Streams of different frameworks hold different deliveries, and differ in nothing else."""

import copy
import pickle
from typing import Any

import pytest

import spiral_stream as sp
from spiral_stream.adapters import JaxStream
from spiral_stream.errors import BindError
from spiral_stream.fields import FieldSpec
from spiral_stream.runtime.delivery import Delivery, Devices, HostDelivery
from tests.fixtures.inner import stages_of
from tests.fixtures.streams import maker, plan

pytestmark = pytest.mark.usefixtures("no_threads_left")


def streams() -> list[type]:
    torch = pytest.importorskip("spiral_stream.adapters.torch")
    return [JaxStream, torch.TorchStream]


def test_no_stream_overrides_what_a_stream_does() -> None:
    written = {
        "__init__",
        "__doc__",
        "__module__",
        "__annotations__",  # in a class that has none, whoever asks for them makes them
        "__firstlineno__",
        "__static_attributes__",
    }  # by Python in every class
    verbs = set(vars(sp.PreparedStream)) - written
    for kind in streams():
        assert not verbs & set(vars(kind)) - {"__parameters__", "__orig_bases__", "__final__"}, kind
        ours = [each for each in kind.__subclasses__() if each.__module__.startswith("spiral_stream")]  # not of a test
        assert ours == []


class Labels(Delivery):
    """A delivery of one's own: the labels alone."""

    def on_host(self, fields: dict[str, Any]) -> Any:
        return fields["label"].tolist()

    def need(self, devices: Devices) -> None:
        del devices


def test_a_stream_takes_a_delivery_of_ones_own(catalog: sp.Catalog) -> None:
    node = maker(catalog, batch_size=30)().plan
    with sp.PreparedStream(node, catalog) as arrays, sp.PreparedStream(node, catalog, delivery=Labels()) as stream:
        expected = [batch["label"].tolist() for batch in arrays]
        assert list(stream) == expected
        assert stream.batch(2, epoch=0) == expected[2]
        with stream.eval() as evaluated:
            assert all(isinstance(batch, list) for batch in evaluated)


def test_a_copied_stream_stands_where_the_first_did_and_opens_its_own(catalog: sp.Catalog) -> None:
    with maker(catalog, batch_size=30)() as stream:
        expected = [batch["id"] for batch in stream]
        stream.load_state_dict(stream.state_dict(delivered=3))
        with pickle.loads(pickle.dumps(stream)) as other:
            assert [batch["id"] for batch in other] == expected[3:]
            assert stream.state_dict()["batch"] == 3
        with copy.deepcopy(stream) as third:
            assert third.metrics()["batches"] == 0
            assert stages_of(third) is not stages_of(stream)


def test_a_device_is_that_of_the_run_else_of_the_field_else_of_the_plan() -> None:
    host = {
        "own": FieldSpec("uint8", (3,), device="cuda:1"),
        "none": FieldSpec("uint8", (3,)),
        "auto": FieldSpec("uint8", (3,), device="auto"),
        "list": FieldSpec(None, ()),
    }
    delivery = HostDelivery()

    assert delivery.devices(host, None, None) == {"own": "cuda:1", "none": None, "auto": "cpu"}
    assert delivery.devices(host, "cuda:2", None) == {"own": "cuda:1", "none": "cuda:2", "auto": "cpu"}
    assert delivery.devices(host, "cuda:2", "cuda") == dict.fromkeys(("own", "none", "auto"), "cuda")
    with pytest.raises(BindError, match=r"field 'own' asks for device 'cuda:1'.*Use to_torch\(\)"):
        delivery.need(delivery.devices(host, None, None))


def test_a_closed_stream_refuses_every_verb_that_reads(catalog: sp.Catalog) -> None:
    stream = plan(catalog.table("lance")).to_numpy()
    stream.close()
    verbs = [
        len,
        list,
        *(getattr(sp.PreparedStream, name) for name in ("count", "explain", "quarantine", "state_dict")),
    ]
    verbs += [sp.PreparedStream.verify, lambda one: one.materialize(lambda _: None), lambda one: one.batch(0)]
    verbs += [lambda one: one.ledger(0), lambda one: one.locate("x"), lambda one: one.fingerprint]
    for verb in verbs:
        with pytest.raises(sp.errors.StreamError, match=r"the stream is closed. Make a new one from its plan"):
            verb(stream)
