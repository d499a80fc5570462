package kstore.oracle;

import org.apache.kafka.common.utils.Exit;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Runs the main method of one of Kafka's tools in this process: its exit and its output are caught. */
final class Tool {
    private Tool() {
    }

    interface Main {
        void main(String[] args) throws Throwable;
    }

    /** Leaves the tool's code; what a tool makes of it on its way out, a second exit among it, counts no more. */
    private static final class Exited extends RuntimeException {
        private static final long serialVersionUID = 1L;
    }

    static Map<String, Object> run(Main tool, List<String> args) {
        ByteArrayOutputStream outBytes = new ByteArrayOutputStream();
        ByteArrayOutputStream errBytes = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        PrintStream toolOut = new PrintStream(outBytes, false, StandardCharsets.UTF_8);
        PrintStream toolErr = new PrintStream(errBytes, false, StandardCharsets.UTF_8);
        List<Integer> codes = new ArrayList<>();
        Exit.Procedure leave = (code, reason) -> {
            codes.add(code);
            throw new Exited();
        };
        System.setOut(toolOut);
        System.setErr(toolErr);
        Exit.setExitProcedure(leave);
        Exit.setHaltProcedure(leave);
        try {
            tool.main(args.toArray(new String[0]));
        } catch (Exited e) {
            // its code is in the list
        } catch (Throwable e) {
            codes.add(1);
            toolErr.print("Exception in thread \"main\" ");
            e.printStackTrace(toolErr);
        } finally {
            // Not reset*(), which leave procedures that end nothing: a broker's fatal fault must end the process.
            Exit.setExitProcedure((code, reason) -> Runtime.getRuntime().exit(code));
            Exit.setHaltProcedure((code, reason) -> Runtime.getRuntime().halt(code));
            System.setOut(out);
            System.setErr(err);
        }
        toolOut.flush();
        toolErr.flush();
        return Json.map("code", codes.isEmpty() ? 0 : codes.get(0), "out", outBytes.toString(StandardCharsets.UTF_8), "err",
            errBytes.toString(StandardCharsets.UTF_8));
    }
}
