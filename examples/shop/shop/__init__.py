"""The shop's data: photos and orders, from files to what is trained on."""
