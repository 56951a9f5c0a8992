# Bash splits `-option=value` into three words, but the functions of shtab support only two.
_openqaic_completed() {
  local -a words=()
  local place=$COMP_CWORD index tool=${1##*/}
  for index in "${!COMP_WORDS[@]}"; do
    if [[ ${COMP_WORDS[index]} != "=" || ${words[-1]} != -* ]]; then
      words+=("${COMP_WORDS[index]}")
    elif (( index == COMP_CWORD )); then
      words+=("")
    elif (( index < COMP_CWORD )); then
      place=$(( place - 1 ))
    fi
  done
  local -a COMP_WORDS=("${words[@]}")
  local COMP_CWORD=$place
  "_shtab_${tool//-/_}" "$@"
}
complete -o bashdefault -F _openqaic_completed TOOLS
