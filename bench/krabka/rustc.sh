#!/bin/sh
# For a rustc before 1.98: krabka-log, and no other crate, may use what is stable from there on.
case " $* " in
*" --crate-name krabka_log "*)
	RUSTC_BOOTSTRAP=1 exec "$@" -Zcrate-attr='feature(proc_macro_hygiene,result_option_map_or_default)'
	;;
esac
exec "$@"
