"""Numbers and lists in messages."""

import pytest

from dtopk_storage.wording import format_bytes, format_count, format_names


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (3 << 19, "1.5 MiB"),
        (5 << 40, "5 TiB"),
        (2000 << 40, "2000 TiB"),
    ],
)
def test_format_bytes_chooses_a_unit_that_shows_the_number(size, text):
    assert format_bytes(size) == text


def test_format_count_agrees_with_the_number():
    assert [format_count(count, "row") for count in (0, 1, 2000)] == [
        "0 rows",
        "1 row",
        "2,000 rows",
    ]
    assert [format_count(count, "class") for count in (1, 2)] == ["1 class", "2 classes"]


def test_format_names_shows_both_ends_of_many():
    assert format_names([]) == "nothing"
    assert format_names(["a", "b"]) == "'a', 'b'"
    shown = format_names([str(number) for number in range(21)]).split(", ")
    assert (shown[0], shown[9:12], shown[-1], len(shown)) == (
        "'0'",
        ["'9'", "...", "'11'"],
        "'20'",
        21,
    )
