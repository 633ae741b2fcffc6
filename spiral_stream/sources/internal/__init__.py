"""Sources that the catalog makes itself: imported, computed, former rows.

Start at: `imported`.
May not know: users' formats.
"""
