/* Status names and the per-thread error text. */
#include "base/status.h"

#include <stdarg.h>

#include "base/text.h"

static _Thread_local char last_error[1024];

ew_status ewx_fail(ew_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    ewx_text_print(last_error, sizeof last_error, format, args);
    va_end(args);
    ewx_text_disarm(last_error); /* it may quote files */
    return status;
}

const char *ew_last_error(void)
{
    return last_error;
}

const char *ew_status_name(ew_status status)
{
    switch (status) {
#define STATUS_NAME(name, value, text) \
    case EW_##name:                    \
        return "EW_" #name;
        EW_STATUS_LIST(STATUS_NAME)
#undef STATUS_NAME
    }
    return "EW_UNKNOWN";
}

const char *ew_status_text(ew_status status)
{
    switch (status) {
#define STATUS_TEXT(name, value, text) \
    case EW_##name:                    \
        return text;
        EW_STATUS_LIST(STATUS_TEXT)
#undef STATUS_TEXT
    }
    return "unknown status";
}

#define TEXT_OF(number) #number
#define VERSION_TEXT(major, minor, patch) \
    TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *ew_version(void)
{
    return VERSION_TEXT(EW_VERSION_MAJOR, EW_VERSION_MINOR, EW_VERSION_PATCH);
}
