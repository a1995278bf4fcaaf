"""What each shell is told by `run.py --shell-completion install=SHELL`.

All three ask the run.py that stands on the line, by the python that stands before it, and only where that file is ours.
A candidate that ends with = or . or / is no end: no space is put behind it.
"""

BASH = r"""
_posttrain_complete() {
    local line=${COMP_LINE:0:COMP_POINT} program=${COMP_WORDS[0]/#\~/$HOME} file=${COMP_WORDS[1]/#\~/$HOME}
    COMPREPLY=()
    [[ $file == *run.py && $COMP_CWORD -gt 1 ]] && grep -qs "pipeline.completion" "$file" || return
    local IFS=$'\n' word=${line##*[[:space:]]}
    COMPREPLY=($(COMP_LINE=$line "$program" "$file" --shell-completion query=bash 2>/dev/null))
    # bash replaces only what stands behind the last of its word breaks
    local breaks=${COMP_WORDBREAKS//[^=:@]/}
    if [[ -n $breaks && $word == *["$breaks"]* ]]; then
        local kept=${word%"${word##*["$breaks"]}"}
        COMPREPLY=("${COMPREPLY[@]#"$kept"}")
    fi
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} != *[=./] ]] || compopt -o nospace 2>/dev/null
}
complete -o bashdefault -o default -F _posttrain_complete python python3
"""

ZSH = r"""
_posttrain_complete() {
    local file=${words[2]/#\~/$HOME}
    if [[ $file != *run.py || $CURRENT -lt 3 ]] || ! grep -qs "pipeline.completion" "$file"; then
        _files
        return
    fi
    local line="${(j: :)words[1,CURRENT-1]} $PREFIX"
    local -a found=("${(@f)$(COMP_LINE=$line ${words[1]/#\~/$HOME} $file --shell-completion query=zsh 2>/dev/null)}")
    compadd -S '' -- ${(M)found:#*[=./]}
    compadd -- ${found:#*[=./]}
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _posttrain_complete python python3
"""

FISH = r"""
function _posttrain_is_ours
    set -l words (commandline -opc)
    test (count $words) -ge 2; and string match -q '*run.py' -- $words[2]
    and grep -qs "pipeline.completion" $words[2]
end
function _posttrain_complete
    set -l words (commandline -opc)
    COMP_LINE=(commandline -cp) $words[1] $words[2] --shell-completion query=fish 2>/dev/null
end
for program in python python3
    complete -c $program -n _posttrain_is_ours -f -a '(_posttrain_complete)'
end
"""

SCRIPTS = {"bash": BASH.strip(), "zsh": ZSH.strip(), "fish": FISH.strip()}
