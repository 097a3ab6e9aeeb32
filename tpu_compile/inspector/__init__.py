"""The command line tool `tpu-compile-inspect`: one file a subcommand.

It reads what the rest of the package tells (`tpu_compile.lower`, `explain`, the statistics, the
caches) and shows it as text, JSON or HTML. Nothing else imports it.
"""
