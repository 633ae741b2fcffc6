"""Check that the token caches are complete before a stream relies on them."""

from functools import partial

from spiral_assets.checks import cache_check
from spiral_assets.defs.caches.text import code_tokens, fineweb_tokens, wikipedia_tokens
from spiral_assets.plans import text as plans

fineweb_is_complete = cache_check(fineweb_tokens, partial(plans.cache_plan, stream="fineweb"))
wikipedia_is_complete = cache_check(wikipedia_tokens, partial(plans.cache_plan, stream="wikipedia"))
code_is_complete = cache_check(code_tokens, partial(plans.cache_plan, stream="code"))
