"""What every HTML page is made of: templates that escape what is put into them, one look, one policy, one writer."""

from tensorferry.pages.page import PageHead, Tile, check_ending, render, write_file, write_page

__all__ = ["PageHead", "Tile", "check_ending", "render", "write_file", "write_page"]
