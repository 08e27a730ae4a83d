"""support/elsewhere.py: calls of one environment share a process; errors are the caller's."""

import os

import pytest

from support import elsewhere


def number_of_process(word):
    print("no answer")
    return [os.getpid(), os.environ[word]]


def wrong(text):
    raise ValueError(text)


def ended():
    os._exit(3)


def test_a_result_or_the_traceback_is_the_answer():
    assert elsewhere.answer_to(__file__, "wrong", ("too much",))["error"].endswith("too much\n")
    result = elsewhere.answer_to(__file__, "number_of_process", ("PATH",))["result"]
    assert result == [os.getpid(), os.environ["PATH"]]


@pytest.mark.full
def test_a_process_serves_each_call_of_its_environment_until_it_ends():
    first, second = ({**os.environ, "WORD": word} for word in ("one", "two"))

    def pid(env, word):
        number, told = elsewhere.call(number_of_process, "WORD", env=env)
        assert told == word and number != os.getpid()
        return number

    one = pid(first, "one")
    assert pid(second, "two") != one
    with pytest.raises(AssertionError, match="ValueError: too much"):
        elsewhere.call(wrong, "too much", env=first)
    assert pid(first, "one") == one
    with pytest.raises(AssertionError, match="the process ended"):
        elsewhere.call(ended, env=first)
    assert pid(first, "one") != one
