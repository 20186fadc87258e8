"""Tokenising chunks of documents, in this process or in several others.

The processes are plain `python -c` children on a socket, not those of `multiprocessing`: these
would run the caller's script once more, and fail where it has no `if __name__ == "__main__"` or
where there is no script (a notebook, standard input). A child ends when its socket closes, so none
is left behind when the parent is killed.
"""

import collections
import contextlib
import dataclasses
import importlib
import os
import queue
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from bert_jax.data.chunks import Chunk
from bert_jax.data.shards import SENTENCE_START, WORD_START, Tokenised

SentenceStarts = Callable[[str], Int64[np.ndarray, " sentences"]]

_CHILD = "import sys; from bert_jax.data.workers import serve; serve(int(sys.argv[1]))"


@dataclasses.dataclass(frozen=True)
class EncoderSpec:
    """What an encoder is made from; small, so that it can be sent to a process.

    Attributes:
        tokenizer: Directory of a saved tokenizer.
        sentences: Function of a text that finds its sentences, as "MODULE:NAME".
        dtype: Of token ids, "uint16" or "uint32".
    """

    tokenizer: Path
    sentences: str
    dtype: str


class Encoder:
    """Turns documents into tokens and flags."""

    def __init__(self, spec: EncoderSpec):
        """Loads the tokenizer."""
        from bert_jax.data.tokenizer import Tokenizer

        self._tokenizer: Any = Tokenizer.load(spec.tokenizer)
        self._sentences = function_by_name(spec.sentences)
        self._dtype = np.dtype(spec.dtype)

    def __call__(self, texts: Sequence[str]) -> Tokenised:
        """Tokenises documents."""
        encoded = self._tokenizer.encode_arrays(texts)
        tokens = [self._narrow(ids) for ids, _, _ in encoded]
        flags = [
            token_flags(word_starts, offsets, self._sentences(text))
            for text, (_, word_starts, offsets) in zip(texts, encoded, strict=True)
        ]
        return Tokenised(
            np.concatenate(tokens) if tokens else np.zeros(0, self._dtype),
            np.concatenate(flags) if flags else np.zeros(0, np.uint8),
            np.asarray([len(ids) for ids in tokens], np.int64),
        )

    def _narrow(self, ids: Any) -> np.ndarray:
        """Ids in the store's type; numpy would let larger ones wrap around in silence."""
        ids = np.asarray(ids, np.int64)
        if ids.max(initial=0) > np.iinfo(self._dtype).max or ids.min(initial=0) < 0:
            raise ValueError(
                f"the tokenizer gives the id {ids.max()}, outside its own vocabulary: repair its "
                "files"
            )
        return ids.astype(self._dtype)


def token_flags(
    word_starts: Any, offsets: Any, sentence_starts: Int64[np.ndarray, " sentences"]
) -> UInt8[np.ndarray, " tokens"]:
    """Marks the tokens a word or a sentence starts with.

    A sentence starts with the first token that ends behind the sentence's first character. (Not:
    that starts at it or later. Some tokens carry the space before them, and one may hold both the
    end of a sentence and the start of the next.) The first token always starts both.

    Args:
        word_starts: bool [tokens].
        offsets: int [tokens, 2], the characters of the text each token stands for.
        sentence_starts: Positions in the text, in characters.
    """
    flags = np.asarray(word_starts, bool).astype(np.uint8) * WORD_START
    if not len(flags):
        return flags
    ends = np.maximum.accumulate(np.asarray(offsets, np.int64).reshape(-1, 2)[:, 1])
    first = np.searchsorted(ends, sentence_starts, side="right")
    flags[first[first < len(flags)]] |= SENTENCE_START
    flags[0] |= WORD_START | SENTENCE_START
    return flags


def name_of_function(function: Callable[..., Any]) -> str:
    """The "MODULE:NAME" under which another process can import a function.

    Raises:
        ValueError: It cannot be imported: a lambda, a nested function, or one of a script.
    """
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if module in ("", "__main__") or not name.isidentifier():
        raise ValueError(
            f"other processes cannot import {module}.{name}: define the function in a module"
        )
    return f"{module}:{name}"


def function_by_name(name: str) -> Callable[..., Any]:
    """Imports what `name_of_function` named."""
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)


def encode_chunks(
    chunks: Iterable[Chunk], spec: EncoderSpec, workers: int
) -> Generator[tuple[Chunk, Tokenised]]:
    """Tokenises chunks, in their order.

    Args:
        chunks: Taken as needed: at most two a worker are in flight.
        spec: Of the encoder.
        workers: Processes; with 0 or 1 everything happens in this one.

    Raises:
        ValueError: The tokenizer refuses a document.
        ChildProcessError: A process was killed.
    """
    if workers <= 1:
        encoder = Encoder(spec)
        for chunk in chunks:
            yield chunk, encoder(chunk.texts)
        return
    with _Processes(spec, workers) as processes:
        flying: collections.deque[tuple[Chunk, Future[Tokenised]]] = collections.deque()
        for chunk in chunks:
            flying.append((chunk, processes.submit(chunk.texts)))
            if len(flying) >= 2 * workers:
                first, future = flying.popleft()
                yield first, future.result()
        for chunk, future in flying:
            yield chunk, future.result()


class _Processes(contextlib.AbstractContextManager["_Processes"]):
    """Encoders in processes; a thread for each waits for its answers."""

    def __init__(self, spec: EncoderSpec, workers: int):
        self._children: list[subprocess.Popen[bytes]] = []
        self._idle: queue.SimpleQueue[tuple[Connection, subprocess.Popen[bytes]]]
        self._idle = queue.SimpleQueue()
        self._connections: list[Connection] = []
        # One thread each in the tokenizer: the processes already use all processors.
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "TOKENIZERS_PARALLELISM": "false",
        }
        for _ in range(workers):
            ours, theirs = Pipe()
            child = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
            theirs.close()
            self._children.append(child)
            self._connections.append(ours)
            ours.send(spec)
            self._idle.put((ours, child))
        self._threads = ThreadPoolExecutor(workers)

    def submit(self, texts: list[str]) -> Future[Tokenised]:
        """Has one of the processes tokenise documents."""
        return self._threads.submit(self._ask, texts)

    def _ask(self, texts: list[str]) -> Tokenised:
        connection, child = self._idle.get()
        try:
            connection.send(texts)
            answer = connection.recv()
        except (EOFError, ConnectionError) as error:
            raise ChildProcessError(
                f"a tokenising process ended (exit status {child.wait()}): it may have run out of "
                "memory, so run the same command again with fewer workers, it goes on from here"
            ) from error
        finally:
            self._idle.put((connection, child))
        if isinstance(answer, Tokenised):
            return answer
        kind, message = answer
        raise (ValueError if kind == "refused" else RuntimeError)(message)

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.terminate()  # also wakes the thread that waits for it
        self._threads.shutdown(cancel_futures=True)
        for child in self._children:
            child.wait()
        for connection in self._connections:
            connection.close()


def serve(descriptor: int) -> None:
    """Main function of a child: answers each list of documents until the socket closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends us
    with Connection(descriptor) as connection:
        try:
            encoder = Encoder(connection.recv())
            while True:
                connection.send(_answer(encoder, connection.recv()))
        except (EOFError, ConnectionError):
            return


def _answer(encoder: Encoder, texts: list[str]) -> Tokenised | tuple[str, str]:
    try:
        return encoder(texts)
    except ValueError as error:
        return "refused", str(error)
    except Exception:  # noqa: BLE001 (raised again in the parent)
        return "failed", f"a tokenising process failed:\n{traceback.format_exc()}"
