"""A package that depends on dibs and brings stores of its own, good ones and broken ones."""
