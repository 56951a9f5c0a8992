# A file in `fpath` is the body of a function; `eval` and `source` register the functions.
typeset -A opt_args
if [[ $zsh_eval_context[-1] == (eval|file*) ]]; then
REGISTERED
else
  _shtab_${service//-/_} "$@"
fi
