"""Pictures of files that whoever runs a program names; so they may lie anywhere."""

from collections.abc import Sequence
from pathlib import Path

from flash41.chat.image_decode import check_request
from flash41.chat.images import Picture, picture
from flash41.chat.parts import read_file
from flash41.config.architecture import ModelConfig
from flash41.engine.prompt_images import image_sizes
from flash41.errors import RequestError


def open_pictures(paths: Sequence[Path], config: ModelConfig) -> list[Picture]:
    """The pictures of image files; RequestError for a file that cannot be read or is refused, with its name."""
    check_request([0] * len(paths))
    sizes = image_sizes(config.vision)
    pictures = []
    for path in paths:
        data = read_file(path)
        try:
            pictures.append(picture(data, sizes))
        except RequestError as error:
            raise RequestError(f"{path}: {error}") from error
    return pictures
