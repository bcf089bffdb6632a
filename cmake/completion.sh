#!/bin/sh
# completion.sh ENTWINE: prints bash's completion, made from the tool's help and, where an option
# takes one of some names, from the error that lists them.  It needs no completion library: that
# of the distributions may not be installed.
entwine=${1:?usage: completion.sh ENTWINE}
version=$("$entwine" --version | sed 's/^entwine \([^ ]*\).*/\1/') || exit 1
commands=$("$entwine" --help | sed -n '/^exit status/q; s/^  \([a-z][a-z]*\) .*/\1/p' | tr '\n' ' ')

# options COMMAND: name, argument or -, letter or -, a line for each.  Explanations start at
# column 27, or on the next line.
options() {
    "$entwine" help "$1" | awk '
        /^examples:/ { exit }
        /^  (-., |    )--/ {
            head = substr($0, 26, 1) == " " ? substr($0, 1, 26) : $0
            letter = head ~ /^  -/ ? substr(head, 3, 2) : "-"
            count = split(substr(head, 7), words, " ")
            print words[1], (count > 1 ? words[2] : "-"), letter
        }'
}

# The names that an option takes; nothing for one that takes numbers or other texts.
values() { # COMMAND OPTION
    "$entwine" "$1" "$2=?" 2>&1 >/dev/null | sed -n -e 's/, or the path of .*//' \
        -e 's/,//g' -e 's/^  fix: one of //p' -e 's/^  fix: use \([^ ]*-.*\)/\1/p'
}

# What a command takes besides options: files, or what its help lists.
words() {
    case $("$entwine" help "$1" | sed 1q) in
    *.json*) echo FILES ;;
    "usage: entwine $1 [options]") ;;
    *) "$entwine" help "$1" | sed -n '/^  .*--/q; s/^  \([a-z][a-z]*\) .*/\1/p' | tr '\n' ' ' ;;
    esac
}

cat <<END
# bash completion for entwine $version, made from its help.
_entwine()
{
    local word=\${COMP_WORDS[COMP_CWORD]} before=\${COMP_WORDS[COMP_CWORD - 1]}
    local options='' words='' values='' files='' commands='$commands'
    COMPREPLY=()
    if [ "\$COMP_CWORD" = 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "\$commands --help --version" -- "\$word")
        return
    fi
    # --option=value comes as three words.
    [ "\$word" = '=' ] && word=''
    [ "\$before" = '=' ] && before=\${COMP_WORDS[COMP_CWORD - 2]}
    case \${COMP_WORDS[1]} in
    help) words=\$commands ;;
END
for command in $commands; do
    [ "$command" = help ] && continue
    printf "    %s)\n        options='%s'\n        words='%s'\n        case \$before in\n" "$command" \
        "$(options "$command" | cut -d' ' -f1 | tr '\n' ' ')" "$(words "$command")"
    options "$command" | while read -r name argument letter; do
        [ "$argument" = - ] && continue
        printf '        %s | %s) ' "$name" "$letter"
        if [ "$argument" = FILE ]; then
            echo 'files=yes ;;'
        else
            names=$(values "$command" "$name" </dev/null)
            [ -n "$names" ] && echo "values='$names' ;;" || echo 'return ;;'
        fi
    done
    echo '        esac ;;'
done
cat <<'END'
    esac
    if [ -n "$values" ]; then
        # The last of a list: fp32,b
        local list=''
        [[ $word == *,* ]] && list=${word%,*},
        mapfile -t COMPREPLY < <(compgen -P "$list" -W "$values" -- "${word##*,}")
    elif [[ $word == -* && -z $files ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
    elif [ -n "$files" ] || [ "$words" = FILES ]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    elif [ -n "$words" ]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    fi
}
complete -F _entwine entwine
END
