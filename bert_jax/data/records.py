"""The readers of Parquet files and of datasets prepared by TensorFlow Datasets (TFDS)."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.data.readers import Document, Source, check_string, decode, no_field


def read_parquet(source: Source, field: str) -> Iterator[tuple[Document, int]]:
    """Format "parquet"."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    size = source.num_bytes
    number = 0
    try:
        with pq.ParquetFile(source.files[0]) as file:
            kind = _parquet_kind(file.schema_arrow, source.path, field)
            for batch in file.iter_batches(batch_size=256, columns=[field]):
                column = batch.column(0)
                if pa.types.is_dictionary(kind):
                    column = column.dictionary_decode()
                for value in column.cast(pa.large_binary()):
                    number += 1
                    where = f"{source.path} record {number}"
                    if not value.is_valid:
                        check_string(None, where, field)
                    position = number * size // file.metadata.num_rows
                    yield Document(decode(value.as_py(), where), where), position
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(
            f"{source.path} record {number + 1} cannot be read as Parquet ({reason}): the file is "
            "damaged or of another format"
        ) from error


def _parquet_kind(schema: Any, path: str, field: str) -> Any:
    """The Arrow type of the field, which must be text."""
    import pyarrow.types as kinds

    if field not in schema.names:
        raise no_field(path, field, schema.names)
    kind = schema.field(field).type
    value = kind.value_type if kinds.is_dictionary(kind) else kind
    textual = (
        kinds.is_string,
        kinds.is_large_string,
        kinds.is_string_view,
        kinds.is_binary,
        kinds.is_large_binary,
    )
    if not any(is_kind(value) for is_kind in textual):
        raise ValueError(f"{path}: field {field!r} is {kind}, not a string: choose another field")
    return kind


def split_tfds(path: str) -> tuple[str, str] | None:
    """Directory and split of `DIRECTORY[:SPLIT]` if it was prepared by TFDS."""
    ends = [i for i, character in enumerate(path) if character == ":"]
    for end in [*ends, len(path)]:
        if os.path.isfile(os.path.join(path[:end], "dataset_info.json")):
            return path[:end], path[end + 1 :] or "train"
    return None


def find_tfds(path: str) -> Source:
    """Finds the split of a prepared dataset, and the files it lies in."""
    found = split_tfds(path)
    if found is None:
        raise ValueError(
            f"{path} is not a dataset prepared by TFDS (no dataset_info.json in it): give the "
            "directory of its version, such as DATA_DIR/NAME/1.0.0"
        )
    directory, split = found
    try:
        with open(os.path.join(directory, "dataset_info.json"), encoding="utf-8") as file:
            info = json.load(file)
        formats = [info.get("fileFormat", "tfrecord"), *info.get("alternativeFileFormats", [])]
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"{directory}/dataset_info.json is damaged ({error}): prepare the dataset again"
        ) from error
    if "array_record" not in formats:
        reason = {
            "parquet": "the Parquet files of TFDS lose records",
            "tfrecord": "its records can only be read with TensorFlow",
        }.get(formats[0], "only array_record is read without TensorFlow")
        raise ValueError(
            f"{directory} is in the format {formats[0]}, which is not read ({reason}): prepare it "
            'again with file_format="array_record"'
        )
    splits = _tfds_builder(directory).info.splits
    try:
        files = tuple(Path(part.filename) for part in splits[split].file_instructions)
    except ValueError as error:
        names = ", ".join(splits)
        raise ValueError(f"{directory} has no split {split!r}: choose one of {names}") from error
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{file} is missing: prepare the dataset again")
    return Source(path, "tfds", files, split)


def _tfds_builder(directory: str) -> Any:
    import tensorflow_datasets as tfds

    return tfds.builder_from_directory(directory, file_format="array_record")


def read_tfds(source: Source, field: str) -> Iterator[tuple[Document, int]]:
    """Format "tfds"."""
    import tensorflow_datasets as tfds

    found = split_tfds(source.path)
    assert found is not None
    builder = _tfds_builder(found[0])
    fields = builder.info.features
    if field not in fields:
        raise no_field(source.path, field, fields)
    # Only the text is decoded: a dataset may hold pictures too.
    skipped = {name: tfds.decode.SkipDecoding() for name in fields if name != field}
    records = builder.as_data_source(split=source.split, decoders=skipped)
    size, total = source.num_bytes, len(records)
    for start in range(0, total, 256):  # one by one, a record costs five times as much
        stop = min(start + 256, total)
        try:
            batch = records.__getitems__(range(start, stop))
        except RuntimeError as error:  # array_record's own check sums
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{source.path} records {start + 1} to {stop} cannot be read ({reason}): the files "
                "are damaged, prepare the dataset again"
            ) from error
        for number, record in enumerate(batch, start + 1):
            where = f"{source.path} record {number}"
            value = record[field]
            if not isinstance(value, bytes):
                raise ValueError(
                    f"{where}: field {field!r} is not text but {fields[field]}: choose another"
                )
            yield Document(decode(value, where), where), number * size // total
