"""The page of recipes is what the recipes say."""

from tools.recipes_page import PAGE, page


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python tools/recipes_page.py"
