# SPDX-License-Identifier: Apache-2.0
"""The tests of test_tokenizer_unicode.py, for every code point there is."""

import test_tokenizer_unicode
from test_tokenizer_unicode import *  # noqa: F403

test_tokenizer_unicode.POINTS = test_tokenizer_unicode.ALL_POINTS
