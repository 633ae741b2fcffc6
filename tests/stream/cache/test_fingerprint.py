"""The fingerprint of a cache that is known before any data is."""

import pytest

import spiral_stream as sp
from spiral_stream.cache.fingerprint import token_code_facts
from spiral_stream.cache.kinds.clips import ClipKind
from spiral_stream.decoders.limits import CLIPS
from spiral_stream.plan.fields.clips import clip_parts

CLIP = sp.Stack("clip", decode="h264", sequence_length=4, crop=32)


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("form", [sp.Frames(shorter_side=48), sp.Frames(quality=80)])
def test_names_alone_give_the_fingerprint_of_a_clip_cache(form: sp.Frames, timed: bool) -> None:
    kind = ClipKind("segments", "clip", clip_parts(CLIP)[0], form, timed, CLIPS)

    assert sp.profiles.cache_fingerprint("segments", "clip", form, CLIP, timed=timed) == kind.fingerprint
    assert sp.profiles.cache_fingerprint("segments", "clip", form, CLIP, timed=not timed) != kind.fingerprint


def test_which_frames_a_field_takes_enters_and_what_it_does_with_them_does_not() -> None:
    def of(**changed: object) -> str:
        field = sp.Stack(**{"column": "clip", "decode": "h264", "sequence_length": 4, "crop": 32, **changed})
        return sp.profiles.cache_fingerprint("segments", "clip", sp.Frames(), field)

    assert of(crop=16) == of()
    assert len({of(), of(sequence_length=5), of(stride=2), of(max_frames=9)}) == 4


def test_clips_without_their_field_are_refused_with_the_way_out() -> None:
    with pytest.raises(sp.errors.PlanError, match="Give the field: decode=Stack"):
        sp.profiles.cache_fingerprint("segments", "clip", sp.Frames(), "h264")


def test_images_have_the_limits_of_their_field() -> None:
    def of(decode: str | sp.Stack) -> str:
        return sp.profiles.cache_fingerprint("photos", "photo", sp.Raw(shorter_side=8), decode)

    assert of(sp.Stack("photo", decode="jpeg")) == of("jpeg")
    assert of(sp.Stack("photo", decode="jpeg", max_pixels=100)) != of("jpeg")


def test_tokens_are_known_by_their_options_and_the_name_of_the_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(tokenizer: str = "a", max_length: int | None = None) -> str:
        return sp.profiles.cache_fingerprint(
            "docs", "text", sp.Tokenize("text", tokenizer=tokenizer, max_length=max_length)
        )

    assert of() == of()
    assert len({of(), of("b"), of(max_length=9)}) == 3
    before = of()
    monkeypatch.setattr("spiral_stream.cache.fingerprint.TOKENS_VERSION", 2)
    assert of() != before
    assert token_code_facts("docs", "text", sp.Tokenize("text", tokenizer="a"))["kind"] == ["tokens", 2]
