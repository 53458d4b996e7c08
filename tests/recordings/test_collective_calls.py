"""Where a step ends."""

from perfmodel.recordings.collective_calls import CollectiveCall, step_ends


def calls(text):
    return [
        CollectiveCall(i, "world", None, (letter,), None, None) for i, letter in enumerate(text)
    ]


def test_a_sequence_that_repeats_ends_steps_where_its_last_does():
    assert step_ends(calls("abcabcabc"), 3) == [2, 5, 8]


def test_a_beginning_that_is_incomplete_does_not_hide_the_steps():
    assert step_ends(calls("c" + "abc" * 3), 3) == [0, 3, 6, 9]
    assert step_ends(calls("x" + "abc" * 4), 4) == [3, 6, 9, 12]


def test_of_lengths_that_fit_the_one_nearest_to_the_marked_steps_is_taken():
    assert step_ends(calls("a" * 12), 3) == [3, 7, 11]
    assert step_ends(calls("abab" * 3), 3) == [3, 7, 11]


def test_a_sequence_that_does_not_repeat_has_no_steps():
    assert step_ends(calls("abcdefgh"), 1) == []
    assert step_ends([], 3) == []
